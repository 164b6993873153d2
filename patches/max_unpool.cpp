// SPDX-License-Identifier: Apache-2.0
// The partial inverse of max pooling over a tensor sharded in space, channels or batch. Values go
// to the places that indices name, so which input rows reach which output rows is in the indices:
// every rank tells for each of its rows the first and the last output row, and a row is sent to the
// ranks whose output rows lie between. Indices of windows that no boundary cuts send no rows.
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/div.h>
#include <ATen/ops/max_unpool2d.h>
#include <ATen/ops/max_unpool3d.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <shard/window_patch.h>

#include <algorithm>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;
using LocalOp = std::function<Tensor(const Tensor& x, const Tensor& indices, IntArrayRef size)>;

/// LibTorch numbers the places in the spatial dims as one. What an index says about the sharded
/// dim.
struct Places {
  int64_t n;      ///< output rows
  int64_t inner;  ///< places in a row

  Tensor row(const Tensor& indices) const { return at::div(indices, inner, "floor").remainder(n); }
  /// In an output that has the rows `out` only and another row for all the others.
  Tensor local(const Tensor& indices, const Rows& out) const {
    const Tensor rows = row(indices);
    const Tensor is_own = (rows >= out.begin) & (rows < out.end);
    const Tensor own = at::where(is_own, rows - out.begin, at::tensor(out.size(), rows.options()));
    const Tensor outer = at::div(indices, inner * n, "floor");
    return (outer * (out.size() + 1) + own) * inner + indices.remainder(inner);
  }
};

/// For every input row the first and the last output row, the same on every rank.
Tensor reached_rows(const Tensor& indices, const ShardedInput& input, const Places& places) {
  const Tensor rows = places.row(to_local(indices)).movedim(input.dim, 0).flatten(1);
  const auto& owned = input.spec->partition();
  const int64_t own = owned[static_cast<size_t>(input.mesh.rank())];
  Tensor reached = at::zeros({own, 2}, innermost(rows).options());
  if (rows.numel() > 0) reached = at::stack({rows.amin({1}), rows.amax({1})}, 1);
  // On an n-d mesh the local tensor may be cut further; its bounds are the same on all of its
  // ranks.
  while (is_shard_tensor(reached))
    reached = raw_local(redistribute(reached, spec_of(reached)->replicated()));
  const auto spec = ShardTensorSpec::make(input.mesh.layout_ref(), Shard(0),
                                          {input.tensor.size(input.dim), 2}, owned);
  const Tensor all = from_local(reached, input.mesh, spec);
  return raw_local(redistribute(all, spec->replicated())).cpu();
}

/// Per rank the input rows that reach its output rows.
std::vector<std::vector<Rows>> wanted_rows(const Tensor& reached,
                                           const std::vector<Rows>& outputs) {
  const auto bounds = reached.accessor<int64_t, 2>();
  std::vector<std::vector<Rows>> wanted;
  for (const Rows& out : outputs) {
    auto& ranges = wanted.emplace_back();
    for (int64_t row = 0; row < bounds.size(0); ++row) {
      if (bounds[row][0] >= out.end || bounds[row][1] < out.begin) continue;
      if (ranges.empty() || ranges.back().end != row) ranges.push_back({row, row});
      ++ranges.back().end;
    }
  }
  return wanted;
}

Tensor unpool_cut(const ShardedInput& input, const Tensor& indices, IntArrayRef size,
                  const LocalOp& op) {
  const auto& owned = input.spec->partition();
  const int64_t n = input.tensor.size(input.dim);
  Places places{size[static_cast<size_t>(input.spatial)], 1};
  for (size_t i = static_cast<size_t>(input.spatial) + 1; i < size.size(); ++i)
    places.inner *= size[i];
  const auto output =
      partition_outputs(owned, places.n, [&](int64_t row) { return (row * places.n + n - 1) / n; });
  std::vector<Rows> outputs;
  for (const int64_t rows : output) {
    const int64_t begin = outputs.empty() ? 0 : outputs.back().end;
    outputs.push_back({begin, begin + rows});
  }
  const auto plan =
      make_halo_plan(input.dim, owned, wanted_rows(reached_rows(indices, input, places), outputs));
  const int64_t rank = input.mesh.rank();
  const Rows out = outputs[static_cast<size_t>(rank)];
  // A row of zeros for a rank without any; its places are the row that is dropped.
  const int64_t dummy = plan.wanted_rows(rank) == 0 ? 1 : 0;
  const Tensor x =
      assemble(exchange_halo(to_local(input.tensor), plan, input.mesh), plan, rank, 0, dummy);
  const Tensor from =
      assemble(exchange_halo(to_local(indices), plan, input.mesh), plan, rank, 0, dummy, -1);
  const Tensor to = dummy ? (from + 1) + out.size() * places.inner : places.local(from, out);
  const Tensor y = op(x, to, with_entry(size.vec(), input.spatial, out.size() + 1));
  return from_window(y.narrow(input.dim, 0, out.size()).contiguous(), input, output);
}

/// Brings both to the same layout.
Tensor unpool(const char* name, const Tensor& x, const Tensor& indices, IntArrayRef size,
              const LocalOp& op) {
  const auto& mesh = mesh_of(is_shard_tensor(x) ? x : indices);
  const auto dims = static_cast<int64_t>(size.size());
  auto input = window_input(name, promote(x, mesh), dims, /*channels_are_local=*/true);
  check<SpecMismatch>(x.sizes() == indices.sizes(), name, "got values of ", x.sizes(),
                      " and indices of ", indices.sizes(), "; expected the same sizes.");
  const auto other = sharded_input(promote(indices, mesh));
  if (input.dim < 0 && other.dim >= 0)
    input = window_input(name, redistribute(input.tensor, other.spec), dims, true);
  const Tensor aligned = redistribute(
      other.tensor, other.spec->with(input.spec->placement(), x.sizes(), input.spec->partition()));
  if (input.is_cut()) {
    const auto is_positive = [](int64_t n) { return n > 0; };
    check<SpecMismatch>(std::all_of(size.begin(), size.end(), is_positive) && x.numel() > 0, name,
                        "got values of ", x.sizes(), " to bring to ", size,
                        "; expected positive sizes. Correct the sizes.");
    return unpool_cut(input, aligned, size, op);
  }
  auto from = input;
  from.tensor = aligned;
  const auto rows = own_rows(input);
  const Tensor y = op(rows.rows, own_rows(from).rows, size);
  if (input.spatial >= 0) return from_window(y, input, {y.size(input.dim)});
  return from_rows(y, input, rows);
}

Tensor unpool2d(const Tensor& x, const Tensor& indices, IntArrayRef size) {
  return unpool("aten::max_unpool2d", x, indices, size,
                [](const Tensor& t, const Tensor& places, IntArrayRef local_size) {
                  return at::max_unpool2d(t, places, local_size);
                });
}

Tensor unpool3d(const Tensor& x, const Tensor& indices, IntArrayRef size, IntArrayRef stride,
                IntArrayRef padding) {
  return unpool("aten::max_unpool3d", x, indices, size,
                [&](const Tensor& t, const Tensor& places, IntArrayRef local_size) {
                  return at::max_unpool3d(t, places, local_size, stride, padding);
                });
}

}  // namespace

SHARD_PATCH(max_unpool) {
  const auto add = [](PatchRegistrar::Listing listing) {
    listing.shards("batch", "channels", "spatial")
        .notes("spatial: each row goes to the ranks that its indices reach");
  };
  add(patch.function<at::_ops::max_unpool2d>(unpool2d));
  add(patch.function<at::_ops::max_unpool3d>(unpool3d));
}

}  // namespace shard
