// SPDX-License-Identifier: Apache-2.0
// The partial inverse of max pooling over a tensor sharded in space, channels or batch. Values go
// to the places that indices name, so which input rows reach which output rows is in the indices:
// every rank tells every other which of its rows reach it, and these are sent. Indices of windows
// that no boundary cuts send no rows. Where a rank would get as much as its share, every value
// travels by itself to the owner of its place.
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/arange.h>
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

/// For every input row of this rank the first and the last output row.
Tensor reached_rows(const Tensor& indices, const ShardedInput& input, const Places& places) {
  const Tensor rows = places.row(to_local(indices)).movedim(input.dim, 0).flatten(1);
  const int64_t own = input.spec->local_size(input.mesh.rank());
  Tensor reached = at::zeros({own, 2}, innermost(rows).options());
  if (rows.numel() > 0) reached = at::stack({rows.amin({1}), rows.amax({1})}, 1);
  // On an n-d mesh the local tensor may be cut further; its bounds are the same on all of its
  // ranks.
  while (is_shard_tensor(reached))
    reached = raw_local(redistribute(reached, spec_of(reached)->replicated()));
  return reached.cpu();
}

/// Per rank the input rows of this one, from the first to the last, that reach its output rows.
Tensor own_ranges(const Tensor& reached, int64_t first_row, const std::vector<Rows>& outputs) {
  const auto bounds = reached.accessor<int64_t, 2>();
  const Tensor ranges = at::zeros({static_cast<int64_t>(outputs.size()), 2}, at::kLong);
  auto range = ranges.accessor<int64_t, 2>();
  for (int64_t rank = 0; rank < range.size(0); ++rank) {
    const Rows& out = outputs[static_cast<size_t>(rank)];
    for (int64_t row = 0; row < bounds.size(0); ++row) {
      if (bounds[row][0] >= out.end || bounds[row][1] < out.begin) continue;
      if (range[rank][1] == 0) range[rank][0] = first_row + row;
      range[rank][1] = first_row + row + 1;
    }
  }
  return ranges;
}

/// Per rank the input rows that reach its output rows: of every owner one range.
std::vector<std::vector<Rows>> wanted_rows(const Tensor& indices, const ShardedInput& input,
                                           const Places& places, const std::vector<Rows>& outputs) {
  const Tensor reached = reached_rows(indices, input, places);
  const Tensor own = own_ranges(reached, input.spec->offset(input.mesh.rank()), outputs);
  const Tensor all =
      all_gather_stack(own.to(innermost(indices).device()), input.mesh).cpu();  // owner, rank, ends
  const auto ranges = all.accessor<int64_t, 3>();
  std::vector<std::vector<Rows>> wanted(outputs.size());
  for (int64_t owner = 0; owner < ranges.size(0); ++owner) {
    for (int64_t rank = 0; rank < ranges.size(1); ++rank) {
      const Rows rows{ranges[owner][rank][0], ranges[owner][rank][1]};
      if (rows.size() > 0) wanted[static_cast<size_t>(rank)].push_back(rows);
    }
  }
  return wanted;
}

// ---- row by row, for places that are near

Tensor unpool_rows(const ShardedInput& input, const Tensor& indices, IntArrayRef size,
                   const Places& places, const HaloPlan& plan, const std::vector<Rows>& outputs,
                   const LocalOp& op) {
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
  Partition output;
  for (const Rows& rows : outputs) output.push_back(rows.size());
  return from_window(y.narrow(input.dim, 0, out.size()).contiguous(), input, output);
}

// ---- value by value, for places anywhere

/// All places as one dim, the sharded one first; as many as there are for an index that is none.
Tensor numbers_of(const Tensor& indices, IntArrayRef size, const Places& places) {
  const auto spatial = static_cast<int64_t>(size.size());
  const int64_t in_plane = c10::multiply_integers(size);
  std::vector<int64_t> planes(indices.sizes().begin(), indices.sizes().end() - spatial);
  const int64_t count = c10::multiply_integers(planes);
  planes.resize(static_cast<size_t>(indices.dim()), 1);
  const Tensor plane = at::arange(count, innermost(indices).options()).view(planes);
  const Tensor outer = at::div(indices, places.inner * places.n, "floor");
  const Tensor inner = indices.remainder(places.inner);
  const Tensor number =
      (places.row(indices) * count + plane) * (in_plane / places.n) + outer * places.inner + inner;
  return at::where((indices >= 0) & (indices < in_plane), number, count * in_plane);
}

Tensor unpool_values(const ShardedInput& input, const Tensor& indices, IntArrayRef size,
                     const Places& places, const std::vector<Rows>& outputs) {
  auto sizes = input.tensor.sizes().vec();
  std::copy(size.begin(), size.end(), sizes.end() - static_cast<std::ptrdiff_t>(size.size()));
  sizes.erase(sizes.begin() + input.dim);
  const int64_t in_row = c10::multiply_integers(sizes);
  sizes.insert(sizes.begin(), places.n);
  Partition partition;
  for (const Rows& rows : outputs) partition.push_back(rows.size() * in_row);
  const auto spec =
      ShardTensorSpec::make(input.mesh.layout_ref(), Shard(0), {places.n * in_row}, partition);
  const Tensor empty = from_local(
      at::zeros({spec->local_size(input.mesh.rank())}, innermost(input.tensor).options()),
      input.mesh, spec);
  const auto flat = [&](const Tensor& t) { return t.movedim(input.dim, 0).reshape({-1}); };
  const Tensor y = empty.index_put({flat(numbers_of(indices, size, places))}, flat(input.tensor));
  return y.view(sizes).movedim(0, input.dim).contiguous();
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
  const auto plan = make_halo_plan(input.dim, owned, wanted_rows(indices, input, places, outputs));
  int64_t most = 0;
  for (int64_t rank = 0; rank < input.mesh.size(); ++rank) {
    most = std::max(most, plan.halo_rows(rank));
  }
  return most * input.mesh.size() >= n
             ? unpool_values(input, indices, size, places, outputs)
             : unpool_rows(input, indices, size, places, plan, outputs, op);
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
        .notes("spatial: rows go to the ranks that their indices reach, or values to their places");
  };
  add(patch.function<at::_ops::max_unpool2d>(unpool2d));
  add(patch.function<at::_ops::max_unpool3d>(unpool3d));
}

}  // namespace shard
