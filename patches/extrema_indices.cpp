// SPDX-License-Identifier: Apache-2.0
// Where the largest and smallest values are. Indices are global; of several equal values the first
// one in global order is taken, as on one device. The gradient goes to that element.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/new_zeros.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <shard/reduction_patch.h>

#include <limits>

namespace shard {
namespace {

using at::Tensor;

constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();

/// Extreme values of a local tensor and their global indices.
struct Candidates {
  Tensor values;
  Tensor indices;
};

Candidates of_nothing(const Tensor& local, const ReducedDims& reduced, bool max) {
  const auto value = extremum_of_nothing(local.scalar_type(), max);
  return {result_of_nothing(local, reduced, value, local.scalar_type()),
          result_of_nothing(local, reduced, kNowhere, at::kLong)};
}

Candidates along_dim(const Tensor& local, const ReducedDims& reduced, int64_t offset, bool max) {
  const auto [values, indices] = max ? at::max(local, reduced.dims[0], reduced.keepdim)
                                     : at::min(local, reduced.dims[0], reduced.keepdim);
  return {values, indices + offset};
}

/// Over all elements; the local flat index becomes a global one.
Candidates of_all(const Tensor& local, const ReducedDims& reduced, const ShardTensorSpec& spec,
                  int64_t offset, bool max) {
  const auto dim = static_cast<size_t>(spec.shard_dim());
  const auto inner = c10::multiply_integers(local.sizes().slice(dim + 1));
  const int64_t outer_step = spec.global_shape()[dim] * inner;
  const int64_t local_step = local.size(spec.shard_dim()) * inner;
  const Tensor flat = max ? at::argmax(local) : at::argmin(local);
  const Tensor index =
      flat.div(local_step, "floor") * outer_step + flat.remainder(local_step) + offset * inner;
  const auto sizes = reduced.result_sizes(local);
  return {local.reshape(-1).take(flat).view(sizes), index.view(sizes)};
}

Candidates best_of_ranks(const Candidates& mine, const DeviceMesh& mesh, bool max) {
  const Tensor values = reduced_over_ranks(mine.values, mesh, max ? ReduceOp::Max : ReduceOp::Min);
  const Tensor is_best =
      mine.values.eq(values).logical_or_(mine.values.isnan().logical_and_(values.isnan()));
  const Tensor first = at::where(is_best, mine.indices, kNowhere);
  return {values, reduced_over_ranks(first, mesh, ReduceOp::Min)};
}

std::optional<Decision> extremum_with_index(const OpCall& call, bool max, bool returns_values) {
  const auto reduced = reduced_dims(call, 1, call.argument(2).toBool());
  const auto* spec = call.tensor(0).spec;
  return reduction_rule(call, reduced, [=, spec = *spec, mesh = call.mesh()](const Tensor& local) {
    const int64_t offset = spec.offset(mesh.rank());
    const auto mine = reduced.local_count(local) == 0 ? of_nothing(local, reduced, max)
                      : reduced.is_full               ? of_all(local, reduced, spec, offset, max)
                                                      : along_dim(local, reduced, offset, max);
    const auto best = best_of_ranks(mine, mesh, max);
    return returns_values ? std::vector<Tensor>{best.values, best.indices}
                          : std::vector<Tensor>{best.indices};
  });
}

Rule value_and_index(bool max) {  // max.dim(self, dim, keepdim), min.dim
  return [max](const OpCall& call) { return extremum_with_index(call, max, true); };
}
Rule index_only(bool max) {  // argmax(self, dim, keepdim), argmin
  return [max](const OpCall& call) { return extremum_with_index(call, max, false); };
}

// ---- the gradient of what selects elements along a dim

/// Puts `values` at `indices` along `dim` of a zero tensor with `rows` rows, where they fall into
/// [offset, offset + rows).
Tensor scatter_into_rows(const Tensor& values, const Tensor& indices, int64_t dim, int64_t offset,
                         int64_t rows) {
  if (rows == 0) return values.narrow(dim, 0, 0);
  const Tensor row = indices - offset;
  const Tensor is_mine = row.ge(0).logical_and(row.lt(rows));
  auto sizes = values.sizes().vec();
  sizes[static_cast<size_t>(dim)] = rows;
  return at::zeros(sizes, values.options())
      .scatter_add(dim, row.clamp(0, rows - 1),
                   at::where(is_mine, values, at::zeros({}, values.options())));
}

bool has_level_cut_along(const Tensor& tensor, int64_t dim) {
  if (!is_shard_tensor(tensor)) return false;
  return spec_of(tensor)->shard_dim() == dim || has_level_cut_along(raw_local(tensor), dim);
}

/// LibTorch scatters into a zero tensor of the global size; here every rank fills its own rows.
Tensor selection_backward(const Tensor& gradient, int64_t dim, const Tensor& indices,
                          c10::IntArrayRef sizes, bool keepdim) {
  const auto& mesh = mesh_of(is_shard_tensor(gradient) ? gradient : indices);
  const auto ndim = static_cast<int64_t>(sizes.size());
  if (!keepdim && ndim > 0) {
    return selection_backward(gradient.unsqueeze(dim), dim, indices.unsqueeze(dim), sizes, true);
  }
  const int64_t along = at::maybe_wrap_dim(dim, ndim);
  if (has_level_cut_along(indices, along)) {  // of a line: a row for every index
    return indices.new_zeros(sizes, gradient.scalar_type()).scatter_add(along, indices, gradient);
  }
  const Tensor whole_indices = promote(indices, mesh);
  const auto& selected = spec_of(whole_indices);  // Shard of another dim, or Replicate
  const auto remembered = remembered_layout(mesh, sizes);
  const bool is_cut =
      selected->is_replicate() && remembered && remembered->placement.is_shard(along);
  const Layout layout = is_cut ? *remembered : Layout(*selected);
  const auto result = selected->with(layout.placement, sizes, layout.partition);
  const Tensor moved = redistribute(promote(gradient, mesh), selected);
  const Tensor values = is_cut ? to_local(moved, Partial()) : to_local(moved);
  if (ndim == 0) return from_local(values, mesh, result);
  const int64_t rows = result->local_shape(mesh.rank())[static_cast<size_t>(along)];
  const int64_t offset = is_cut ? result->offset(mesh.rank()) : 0;
  return from_local(scatter_into_rows(values, raw_local(whole_indices), along, offset, rows), mesh,
                    result);
}

}  // namespace

SHARD_PATCH(extrema_indices) {
  patch.remembering_rule("aten::max.dim", value_and_index(true)).shards("any dim").needs_values();
  patch.remembering_rule("aten::min.dim", value_and_index(false)).shards("any dim").needs_values();
  patch.rule("aten::argmax", index_only(true)).shards("any dim").needs_values();
  patch.rule("aten::argmin", index_only(false)).shards("any dim").needs_values();
  patch.function<at::_ops::value_selecting_reduction_backward>(selection_backward)
      .shards("any dim");
}

}  // namespace shard
