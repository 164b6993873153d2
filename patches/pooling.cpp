// SPDX-License-Identifier: Apache-2.0
// Max and average pooling over a tensor sharded in space, channels or batch. Along cut spatial dims
// what this rank's windows need, padding included, is put together and LibTorch's own op runs on it
// without padding there; what that changes (average divisors, indices of maxima) is corrected dim
// by dim.
#include <ATen/Dispatch.h>
#include <ATen/ops/avg_pool1d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool3d.h>
#include <ATen/ops/max_pool1d.h>
#include <ATen/ops/max_pool1d_with_indices.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool3d.h>
#include <ATen/ops/max_pool3d_with_indices.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <shard/box_patch.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;

/// The arguments of a pooling op, one value per spatial dim.
struct Pooling {
  std::string op;
  std::vector<int64_t> kernel, stride, padding, dilation;
  bool ceil_mode;

  Window window(size_t i) const {
    return {kernel[i], stride[i], padding[i], dilation[i], ceil_mode};
  }
};

Pooling make_pooling(const char* op, int64_t dims, IntArrayRef kernel, IntArrayRef stride,
                     IntArrayRef padding, IntArrayRef dilation, bool ceil_mode) {
  check<SpecMismatch>(!kernel.empty(), op, "got no kernel size; expected one value or ", dims,
                      " of them. Pass one value per spatial dim.");
  auto sizes = expanded(op, kernel, dims, 1);
  auto strides = stride.empty() ? sizes : expanded(op, stride, dims, 1);
  return {op,       sizes, strides, expanded(op, padding, dims, 0), expanded(op, dilation, dims, 1),
          ceil_mode};
}

/// Checked.
Window window_of(const Pooling& pooling, const BoxInput& input, const Cut& cut) {
  const Window window = pooling.window(input.entry(cut));
  check_window(pooling.op, cut.dim, input.size(cut), window);
  check<SpecMismatch>(window.padding <= window.reach() / 2, pooling.op, "got padding ",
                      window.padding, " along dim ", cut.dim,
                      "; expected at most half of the window's ", window.reach(),
                      " rows. Use less padding, or pad() first.");
  return window;
}

ShardedInput pooling_input(const Pooling& pooling, const Tensor& x) {
  const auto dims = static_cast<int64_t>(pooling.kernel.size());
  return window_input(pooling.op, x, dims, /*channels_are_local=*/true);
}

LocalBox pooling_box(const Pooling& pooling, const BoxInput& input, const at::Scalar& fill) {
  std::vector<CutParts> cuts;
  for (const Cut& cut : input.cuts())
    cuts.push_back(window_cut(window_of(pooling, input, cut), cut));
  return input.fetch(cuts, fill);
}

/// What never wins against a value.
at::Scalar lowest(at::ScalarType type) {
  if (at::isFloatingType(type)) return -std::numeric_limits<double>::infinity();
  return AT_DISPATCH_INTEGRAL_TYPES(type, "lowest", [] {
    return at::Scalar(static_cast<int64_t>(std::numeric_limits<scalar_t>::lowest()));
  });
}

template <class Op, int64_t dims>
Tensor max_pool(const Tensor& x, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                IntArrayRef dilation, bool ceil_mode) {
  const auto pooling = make_pooling(Op::name, dims, kernel, stride, padding, dilation, ceil_mode);
  const auto local_op = [&](const Tensor& t, const std::vector<int64_t>& paddings) {
    return Op::call(t, pooling.kernel, pooling.stride, paddings, pooling.dilation, ceil_mode);
  };
  const auto sharded = pooling_input(pooling, x);
  if (!sharded.is_cut()) {
    const auto rows = own_rows(sharded);
    return from_rows(local_op(rows.rows, pooling.padding), sharded, rows);
  }
  const BoxInput input(sharded);
  const auto box = pooling_box(pooling, input, lowest(x.scalar_type()));
  return input.wrapped(local_op(box.rows, input.with_entries(pooling.padding, 0)), box);
}

/// `indices` count in the local box, padding included; the result counts in the whole tensor.
Tensor in_the_whole(Tensor indices, const Pooling& pooling, const BoxInput& input,
                    const LocalBox& box, const Tensor& whole) {
  std::vector<size_t> order(input.cuts().size());  // the last dim first: rows of earlier ones are
  std::iota(order.begin(), order.end(), 0);        // counted in whole rows of it
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return input.cuts()[a].dim > input.cuts()[b].dim; });
  for (const size_t i : order) {
    const Cut& cut = input.cuts()[i];
    const Window window = pooling.window(input.entry(cut));
    const int64_t first = box.parts[i].out.begin * window.stride - window.padding;
    const int64_t local_n = box.rows.size(cut.dim);
    indices = global_indices(indices, whole, cut.dim, local_n, [&](const Tensor& local_row) {
      const Tensor row = local_row + first;
      // A window of nothing but -inf: LibTorch names its first element that is not padding.
      return at::where(row < 0, row.remainder(window.dilation), row);
    });
  }
  return indices;
}

template <class Op, int64_t dims>
std::tuple<Tensor, Tensor> max_pool_with_indices(const Tensor& x, IntArrayRef kernel,
                                                 IntArrayRef stride, IntArrayRef padding,
                                                 IntArrayRef dilation, bool ceil_mode) {
  const auto pooling = make_pooling(Op::name, dims, kernel, stride, padding, dilation, ceil_mode);
  const auto local_op = [&](const Tensor& t, const std::vector<int64_t>& paddings) {
    return Op::call(t, pooling.kernel, pooling.stride, paddings, pooling.dilation, ceil_mode);
  };
  const auto sharded = pooling_input(pooling, x);
  if (!sharded.is_cut()) {
    const auto rows = own_rows(sharded);
    const auto [y, indices] = local_op(rows.rows, pooling.padding);
    return {from_rows(y, sharded, rows), from_rows(indices, sharded, rows)};
  }
  const BoxInput input(sharded);
  const auto box = pooling_box(pooling, input, lowest(x.scalar_type()));
  const auto [y, indices] = local_op(box.rows, input.with_entries(pooling.padding, 0));
  return {input.wrapped(y, box),
          input.wrapped(in_the_whole(indices, pooling, input, box, sharded.tensor), box)};
}

/// How many rows LibTorch divides by for output row `out`; the local op divides by `window.kernel`.
int64_t divisor_rows(const Window& window, int64_t out, int64_t n, bool count_include_pad) {
  const int64_t begin = out * window.stride - window.padding;
  const int64_t end = std::min(begin + window.kernel, n + window.padding);
  return count_include_pad ? end - begin : std::min(end, n) - std::max<int64_t>(begin, 0);
}

/// Kernel rows / rows to divide by, for each of this rank's output rows of a dim of `n` rows.
/// Undefined where all are 1.
Tensor divisor_factors(const Window& window, const Rows& rows, int64_t dim, int64_t n,
                       const Tensor& y, bool count_include_pad) {
  std::vector<double> factors;
  for (int64_t out = rows.begin; out < rows.end; ++out) {
    const int64_t count = divisor_rows(window, out, n, count_include_pad);
    factors.push_back(static_cast<double>(window.kernel) / static_cast<double>(count));
  }
  if (std::all_of(factors.begin(), factors.end(), [](double factor) { return factor == 1; }))
    return {};
  Shape shape(static_cast<size_t>(y.dim()), 1);
  shape[static_cast<size_t>(dim)] = static_cast<int64_t>(factors.size());
  const auto type =
      y.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;  // 2/3 in bf16 is too coarse
  return at::tensor(factors, y.options().dtype(type)).view(shape);
}

/// What is divided by other numbers of rows afterwards has to be more than the quotient of
/// integers. Of all output rows, not of this rank's: every rank must refuse.
void check_divisors(const Pooling& pooling, const BoxInput& input, bool count_include_pad) {
  if (input.local().is_floating_point()) return;
  for (const Cut& cut : input.cuts()) {
    const auto window = window_of(pooling, input, cut);
    const int64_t n = input.size(cut);
    for (int64_t out = 0; out < window.output_size(n); ++out) {
      if (divisor_rows(window, out, n, count_include_pad) != window.kernel)
        refuse_op(pooling.op, "integers and padding that is not counted", "floating-point values");
    }
  }
}

/// The average over `box`, whose padding the local op counted like values.
Tensor with_divisors(Tensor y, const Pooling& pooling, const BoxInput& input, const LocalBox& box,
                     bool count_include_pad) {
  for (size_t i = 0; i < input.cuts().size() && !box.is_dummy(); ++i) {
    const Cut& cut = input.cuts()[i];
    const Tensor factors = divisor_factors(pooling.window(input.entry(cut)), box.parts[i].out,
                                           cut.dim, input.size(cut), y, count_include_pad);
    if (factors.defined()) y = (y * factors).to(y.scalar_type());
  }
  return y;
}

template <class Op, int64_t dims>
Tensor average(const Tensor& x, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
               bool ceil_mode, bool count_include_pad, std::optional<int64_t> divisor) {
  const auto pooling = make_pooling(Op::name, dims, kernel, stride, padding, 1, ceil_mode);
  const auto local_op = [&](const Tensor& t, const std::vector<int64_t>& paddings) {
    if constexpr (dims == 1) {
      return Op::call(t, pooling.kernel, pooling.stride, paddings, ceil_mode, count_include_pad);
    } else {
      return Op::call(t, pooling.kernel, pooling.stride, paddings, ceil_mode, count_include_pad,
                      divisor);
    }
  };
  const auto sharded = pooling_input(pooling, x);
  if (!sharded.is_cut()) {
    const auto rows = own_rows(sharded);
    return from_rows(local_op(rows.rows, pooling.padding), sharded, rows);
  }
  const BoxInput input(sharded);
  if (!divisor) check_divisors(pooling, input, count_include_pad);
  const auto box = pooling_box(pooling, input, 0);
  Tensor y = local_op(box.rows, input.with_entries(pooling.padding, 0));
  if (!divisor) y = with_divisors(y, pooling, input, box, count_include_pad);
  return input.wrapped(y, box);
}

template <class Op, int64_t dims>
Tensor avg_pool(const Tensor& x, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                bool ceil_mode, bool count_include_pad, std::optional<int64_t> divisor) {
  return average<Op, dims>(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor);
}

Tensor avg_pool1d(const Tensor& x, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                  bool ceil_mode, bool count_include_pad) {
  return average<at::_ops::avg_pool1d, 1>(x, kernel, stride, padding, ceil_mode, count_include_pad,
                                          std::nullopt);
}

}  // namespace

SHARD_PATCH(pooling) {
  const auto add = [](PatchRegistrar::Listing listing) {
    listing.shards("batch", "channels", "spatial");
  };
  namespace ops = at::_ops;
  add(patch.function<ops::max_pool1d>(max_pool<ops::max_pool1d, 1>));
  add(patch.function<ops::max_pool2d>(max_pool<ops::max_pool2d, 2>));
  add(patch.function<ops::max_pool3d>(max_pool<ops::max_pool3d, 3>));
  add(patch.function<ops::max_pool1d_with_indices>(
      max_pool_with_indices<ops::max_pool1d_with_indices, 1>));
  add(patch.function<ops::max_pool2d_with_indices>(
      max_pool_with_indices<ops::max_pool2d_with_indices, 2>));
  add(patch.function<ops::max_pool3d_with_indices>(
      max_pool_with_indices<ops::max_pool3d_with_indices, 3>));
  add(patch.function<ops::avg_pool1d>(avg_pool1d));
  add(patch.function<ops::avg_pool2d>(avg_pool<ops::avg_pool2d, 2>));
  add(patch.function<ops::avg_pool3d>(avg_pool<ops::avg_pool3d, 3>));
}

}  // namespace shard
