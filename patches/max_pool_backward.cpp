// SPDX-License-Identifier: Apache-2.0
// The gradient of max pooling, called by itself: every value goes to the place that its index
// names. (The gradients of the pooling ops come from patches/pooling.cpp.) Along cut spatial dims a
// rank makes the rows of its part of the input, from the values of all windows that reach them.
#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/max_pool3d_with_indices_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <shard/box_patch.h>

#include <algorithm>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;

/// Windows of a pooling op, one for each spatial dim.
using Windows = std::vector<Window>;

/// `t`, of the pooled sizes, on all levels of the input `x` and cut along the same dims. What is
/// cut beside space has the input's pieces.
Tensor lying_like(const Tensor& x, const Tensor& t, int64_t spatial_dims) {
  if (!is_shard_tensor(x)) return t;
  const auto& mesh = mesh_of(x);
  const Tensor promoted = promote(t, mesh);
  const auto& given = spec_of(promoted);
  const auto& wanted = spec_of(x);
  SpecRef spec = given->replicated();
  if (wanted->is_shard()) {
    const bool is_spatial = wanted->shard_dim() >= t.dim() - spatial_dims;
    const bool is_cut_so = given->is_shard() && given->shard_dim() == wanted->shard_dim();
    if (is_spatial) {
      spec = is_cut_so ? given : given->with(wanted->placement(), t.sizes());
    } else {
      spec = given->with(wanted->placement(), t.sizes(), wanted->partition());
    }
  }
  const Tensor moved = redistribute(promoted, spec);
  const Tensor inner = lying_like(raw_local(x), to_local(moved), spatial_dims);
  return from_local(inner, mesh, spec);
}

/// Pooled rows whose windows reach the rows `own` of the input.
Rows rows_reaching(const Rows& own, const Window& window, int64_t pooled) {
  if (own.size() == 0) return {0, 0};
  const int64_t first = own.begin + window.padding - window.reach() + 1;
  const int64_t last = own.end - 1 + window.padding;
  const int64_t begin = first <= 0 ? 0 : (first + window.stride - 1) / window.stride;
  const int64_t end = std::min(last / window.stride + 1, pooled);
  return {std::min(begin, end), end};
}

/// The rows that a rank makes of every spatial dim, and what it makes them of.
struct Region {
  std::vector<Rows> rows;
  Shape whole;  ///< sizes of the spatial dims

  int64_t places() const {
    int64_t count = 1;
    for (const Rows& own : rows) count *= own.size();
    return count;
  }
  /// Indices count in the whole; here within the region, and what is outside is one place after it.
  Tensor local(Tensor indices) const {
    Tensor place = at::zeros({}, indices.options());
    Tensor is_own = at::ones_like(indices, at::kBool);
    int64_t inner = 1;
    for (size_t i = rows.size(); i-- > 0;) {
      const Tensor row = at::remainder(indices, whole[i]);
      indices = at::div(indices, whole[i], "floor");
      is_own = is_own & row.ge(rows[i].begin) & row.lt(rows[i].end);
      place = place + (row - rows[i].begin) * inner;
      inner *= rows[i].size();
    }
    return at::where(is_own, place, places());
  }
};

Tensor scattered(const Tensor& values, const Tensor& indices, const Region& region) {
  const auto space = -static_cast<int64_t>(region.rows.size());
  auto sizes = values.sizes().vec();
  sizes.resize(sizes.size() - region.rows.size());
  auto flat = sizes;
  flat.push_back(region.places() + 1);
  for (const Rows& own : region.rows) sizes.push_back(own.size());
  return at::zeros(flat, values.options())
      .scatter_add(-1, region.local(indices).flatten(space), values.flatten(space))
      .narrow(-1, 0, region.places())
      .reshape(sizes);
}

Tensor across_ranks(const Tensor& values, const Tensor& indices, const Tensor& x,
                    const Windows& windows) {
  const auto first = static_cast<size_t>(x.dim()) - windows.size();
  std::vector<int64_t> dims;
  Region region{{}, Shape(x.sizes().slice(first))};
  for (size_t i = 0; i < windows.size(); ++i) {
    dims.push_back(static_cast<int64_t>(first + i));
    region.rows.push_back({0, region.whole[i]});
  }
  const BoxInput input(values, dims);
  const BoxInput numbers(indices, dims);
  const Bottom whole(x);
  std::vector<CutParts> cuts;
  for (const Cut& cut : input.cuts()) {
    const size_t i = input.entry(cut);
    const auto owned = whole.cuts_along({cut.dim})[0].owned;
    auto& parts = cuts.emplace_back().parts;
    int64_t begin = 0;
    for (const int64_t size : owned) {
      const Rows own{begin, begin + size};
      parts.push_back({own, rows_reaching(own, windows[i], input.size(cut))});
      begin += size;
    }
    region.rows[i] = parts[static_cast<size_t>(input.place(cut))].out;
  }
  const auto box = input.fetch(cuts);
  return input.wrapped(scattered(box.rows, numbers.fetch(cuts).rows, region), box);
}

/// SpecMismatch unless every index names a place in the window of its value: no other rank's window
/// is asked for it. The same on every rank.
void check_indices(const std::string& op, const Tensor& indices, const Tensor& x,
                   const Windows& windows) {
  const at::NoGradGuard guard;
  const int64_t first = x.dim() - static_cast<int64_t>(windows.size());
  Tensor rest = indices;
  Tensor is_outside;
  for (size_t i = windows.size(); i-- > 0;) {
    const Window& window = windows[i];
    const int64_t dim = first + static_cast<int64_t>(i);
    const Tensor row = at::remainder(rest, x.size(dim));
    rest = at::div(rest, x.size(dim), "floor");
    Shape shape(static_cast<size_t>(x.dim()), 1);
    shape[static_cast<size_t>(dim)] = indices.size(dim);
    const Tensor begin =
        at::arange(indices.size(dim), innermost(indices).options()).view(shape) * window.stride -
        window.padding;
    const Tensor outside = row.lt(begin).logical_or(row.ge(begin + window.reach()));
    is_outside = is_outside.defined() ? is_outside.logical_or(outside) : outside;
  }
  check<SpecMismatch>(!is_outside.logical_or(rest.ne(0)).any().item<bool>(), op,
                      "got indices of other places; expected them inside the windows of their "
                      "values, as the pooling op gives them.");
}

/// A zero that hangs on `x`, as LibTorch's result hangs on the input that it does not depend on.
Tensor zero_of(const Tensor& x) { return x.narrow(-1, 0, 0).sum().to(x.scalar_type()); }

using LocalOp = std::function<Tensor(const Tensor& values, const Tensor& x, const Tensor& indices)>;

Tensor go(const std::string& op, const Tensor& given_values, const Tensor& given_x,
          const Windows& windows, const Tensor& given_indices, const LocalOp& local_op) {
  const auto dims = static_cast<int64_t>(windows.size());
  const auto& mesh = mesh_of(is_shard_tensor(given_x)        ? given_x
                             : is_shard_tensor(given_values) ? given_values
                                                             : given_indices);
  const auto input = window_input(op, promote(given_x, mesh), dims, /*channels_are_local=*/true);
  const Tensor& x = input.tensor;
  const auto lead = static_cast<size_t>(x.dim() - dims);
  bool fits = given_values.dim() == x.dim() && given_values.sizes() == given_indices.sizes() &&
              given_values.sizes().slice(0, lead) == x.sizes().slice(0, lead);
  for (size_t i = 0; fits && i < windows.size(); ++i) {
    const auto dim = static_cast<int64_t>(lead + i);
    check_window(op, dim, x.size(dim), windows[i]);
    fits = given_values.size(dim) == windows[i].output_size(x.size(dim));
  }
  check<SpecMismatch>(fits, op, "got gradients of ", given_values.sizes(), " and indices of ",
                      given_indices.sizes(), " for an input of ", x.sizes(),
                      "; expected the sizes of its pooled result. Correct the sizes.");
  const Tensor values = lying_like(x, given_values, dims);
  const Tensor indices = lying_like(x, given_indices, dims);
  if (input.is_cut()) {
    check_indices(op, indices, x, windows);
    const Tensor y = across_ranks(values, indices, x, windows);
    return x.requires_grad() ? y + zero_of(x) : y;
  }
  const auto rows = own_rows(input);
  const auto rows_of = [](const Tensor& t) { return own_rows(sharded_input(t)).rows; };
  const Tensor y = local_op(rows_of(values), rows.rows, rows_of(indices));
  if (input.spatial >= 0) return from_window(y, input, {y.size(input.dim)});
  return from_rows(y, input, rows);
}

Windows windows_of(const std::string& op, int64_t dims, IntArrayRef kernel, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool ceil_mode) {
  check<SpecMismatch>(!kernel.empty(), op, "got no kernel size; expected one value or ", dims,
                      " of them. Pass one value per spatial dim.");
  const auto kernels = expanded(op, kernel, dims, 1);
  const auto strides = stride.empty() ? kernels : expanded(op, stride, dims, 1);
  const auto paddings = expanded(op, padding, dims, 0);
  const auto dilations = expanded(op, dilation, dims, 1);
  Windows windows;
  for (size_t i = 0; i < kernels.size(); ++i) {
    windows.push_back({kernels[i], strides[i], paddings[i], dilations[i], ceil_mode});
  }
  return windows;
}

template <class Op, int64_t dims>
Tensor backward(const Tensor& values, const Tensor& x, IntArrayRef kernel, IntArrayRef stride,
                IntArrayRef padding, IntArrayRef dilation, bool ceil_mode, const Tensor& indices) {
  return go(Op::name, values, x,
            windows_of(Op::name, dims, kernel, stride, padding, dilation, ceil_mode), indices,
            [&](const Tensor& g, const Tensor& input, const Tensor& places) {
              return Op::call(g, input, kernel, stride, padding, dilation, ceil_mode, places);
            });
}

}  // namespace

SHARD_PATCH(max_pool_backward) {
  namespace ops = at::_ops;
  patch
      .function<ops::max_pool2d_with_indices_backward>(
          backward<ops::max_pool2d_with_indices_backward, 2>)
      .shards("batch", "channels", "spatial");
  patch
      .function<ops::max_pool3d_with_indices_backward>(
          backward<ops::max_pool3d_with_indices_backward, 3>)
      .shards("batch", "channels", "spatial");
}

}  // namespace shard
