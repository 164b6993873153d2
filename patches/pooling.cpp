// SPDX-License-Identifier: Apache-2.0
// Max and average pooling over a tensor sharded in space, channels or batch. Along a sharded
// spatial dim the rows that this rank's windows need, padding included, are put together and
// LibTorch's own op runs on them without padding there; what that changes (average divisors,
// indices of maxima) is corrected row by row.
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
#include <shard/window_patch.h>

#include <algorithm>
#include <limits>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;

/// The arguments of a pooling op, one value per spatial dim.
struct Pooling {
  std::string op;
  std::vector<int64_t> kernel, stride, padding, dilation;
  bool ceil_mode;

  Window window(int64_t spatial) const {
    const auto i = static_cast<size_t>(spatial);
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

void check_pooling_window(const Pooling& pooling, const ShardedInput& input, const Window& window) {
  check_window(pooling.op, input, window);
  check<SpecMismatch>(window.padding <= window.reach() / 2, pooling.op, "got padding ",
                      window.padding, " along dim ", input.dim,
                      "; expected at most half of the window's ", window.reach(),
                      " rows. Use less padding, or pad() first.");
}

/// A pooling op's input rows and the padding that the local op still has to do.
struct PoolingRows {
  ShardedInput input;
  LocalRows local;
  std::vector<int64_t> padding;
};

ShardedInput pooling_input(const Pooling& pooling, const Tensor& x) {
  const auto dims = static_cast<int64_t>(pooling.kernel.size());
  return window_input(pooling.op, x, dims, /*channels_are_local=*/true);
}

PoolingRows pooling_rows(const Pooling& pooling, const ShardedInput& input,
                         const at::Scalar& fill) {
  if (!input.is_cut()) return {input, own_rows(input), pooling.padding};
  const auto window = pooling.window(input.spatial);
  check_pooling_window(pooling, input, window);
  return {input, window_rows(input, window, fill), with_entry(pooling.padding, input.spatial, 0)};
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
  const auto rows = pooling_rows(pooling, pooling_input(pooling, x), lowest(x.scalar_type()));
  const Tensor y = Op::call(rows.local.rows, pooling.kernel, pooling.stride, rows.padding,
                            pooling.dilation, ceil_mode);
  return from_rows(y, rows.input, rows.local);
}

/// `indices` count in the local rows, padding included; the result counts in the whole tensor.
Tensor in_the_whole(const Tensor& indices, const PoolingRows& rows, int64_t dilation) {
  const int64_t local_n = rows.local.rows.size(rows.input.dim);
  return global_indices(indices, rows.input, local_n, [&](const Tensor& local_row) {
    const Tensor row = local_row + rows.local.first;
    // A window of nothing but -inf: LibTorch names its first element that is not padding.
    return at::where(row < 0, row.remainder(dilation), row);
  });
}

template <class Op, int64_t dims>
std::tuple<Tensor, Tensor> max_pool_with_indices(const Tensor& x, IntArrayRef kernel,
                                                 IntArrayRef stride, IntArrayRef padding,
                                                 IntArrayRef dilation, bool ceil_mode) {
  const auto pooling = make_pooling(Op::name, dims, kernel, stride, padding, dilation, ceil_mode);
  const auto rows = pooling_rows(pooling, pooling_input(pooling, x), lowest(x.scalar_type()));
  auto [y, indices] = Op::call(rows.local.rows, pooling.kernel, pooling.stride, rows.padding,
                               pooling.dilation, ceil_mode);
  if (rows.input.is_cut()) {
    indices =
        in_the_whole(indices, rows, pooling.dilation[static_cast<size_t>(rows.input.spatial)]);
  }
  return {from_rows(y, rows.input, rows.local), from_rows(indices, rows.input, rows.local)};
}

/// How many rows LibTorch divides by for output row `out`; the local op divides by `window.kernel`.
int64_t divisor_rows(const Window& window, int64_t out, int64_t n, bool count_include_pad) {
  const int64_t begin = out * window.stride - window.padding;
  const int64_t end = std::min(begin + window.kernel, n + window.padding);
  return count_include_pad ? end - begin : std::min(end, n) - std::max<int64_t>(begin, 0);
}

/// Kernel rows / rows to divide by, for each of this rank's output rows. Undefined where all are 1.
Tensor divisor_factors(const Window& window, const PoolingRows& rows, const Tensor& y,
                       bool count_include_pad) {
  const int64_t n = rows.input.spec->global_shape()[static_cast<size_t>(rows.input.dim)];
  std::vector<double> factors;
  for (int64_t out = rows.local.out.begin; out < rows.local.out.end; ++out) {
    const int64_t count = divisor_rows(window, out, n, count_include_pad);
    factors.push_back(static_cast<double>(window.kernel) / static_cast<double>(count));
  }
  if (std::all_of(factors.begin(), factors.end(), [](double factor) { return factor == 1; }))
    return {};
  Shape shape(static_cast<size_t>(y.dim()), 1);
  shape[static_cast<size_t>(rows.input.dim)] = static_cast<int64_t>(factors.size());
  const auto type =
      y.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;  // 2/3 in bf16 is too coarse
  return at::tensor(factors, y.options().dtype(type)).view(shape);
}

/// What is divided by other numbers of rows afterwards has to be more than the quotient of
/// integers. Of all output rows, not of this rank's: every rank must refuse.
void check_divisors(const Pooling& pooling, const ShardedInput& input, bool count_include_pad) {
  if (!input.is_cut() || input.tensor.is_floating_point()) return;
  const auto window = pooling.window(input.spatial);
  check_pooling_window(pooling, input, window);
  const int64_t n = input.tensor.size(input.dim);
  for (int64_t out = 0; out < window.output_size(n); ++out) {
    if (divisor_rows(window, out, n, count_include_pad) != window.kernel)
      refuse_op(pooling.op, "integers and padding that is not counted", "floating-point values");
  }
}

template <class Op, int64_t dims>
Tensor average(const Tensor& x, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
               bool ceil_mode, bool count_include_pad, std::optional<int64_t> divisor) {
  const auto pooling = make_pooling(Op::name, dims, kernel, stride, padding, 1, ceil_mode);
  const auto input = pooling_input(pooling, x);
  if (!divisor) check_divisors(pooling, input, count_include_pad);
  const auto rows = pooling_rows(pooling, input, 0);
  Tensor y;
  if constexpr (dims == 1) {
    y = Op::call(rows.local.rows, pooling.kernel, pooling.stride, rows.padding, ceil_mode,
                 count_include_pad);
  } else {
    y = Op::call(rows.local.rows, pooling.kernel, pooling.stride, rows.padding, ceil_mode,
                 count_include_pad, divisor);
  }
  if (rows.input.is_cut() && !divisor && !rows.local.is_dummy) {
    const auto window = pooling.window(rows.input.spatial);
    const Tensor factors = divisor_factors(window, rows, y, count_include_pad);
    if (factors.defined()) y = (y * factors).to(y.scalar_type());
  }
  return from_rows(y, rows.input, rows.local);
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
