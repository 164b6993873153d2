// SPDX-License-Identifier: Apache-2.0
// Largest and smallest values. A rank with an empty shard takes part with the neutral element; ties
// share the gradient over all ranks, because LibTorch's formulas count them with a (global) sum.
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/full.h>
#include <shard/reduction_patch.h>

namespace shard {
namespace {

using at::Tensor;

Tensor over_ranks(const Tensor& local, const ReducedDims& reduced, const DeviceMesh& mesh,
                  bool max) {
  const auto op = max ? ReduceOp::Max : ReduceOp::Min;
  if (reduced.local_count(local) == 0) {
    const auto value = extremum_of_nothing(local.scalar_type(), max);
    return reduced_over_ranks(result_of_nothing(local, reduced, value, local.scalar_type()), mesh,
                              op);
  }
  return reduced_over_ranks(max ? at::amax(local, reduced.dims, reduced.keepdim)
                                : at::amin(local, reduced.dims, reduced.keepdim),
                            mesh, op);
}

Rule extremum(bool max) {  // amax(self, dim, keepdim), amin
  return [max](const OpCall& call) {
    const auto reduced = reduced_dims(call, 1, call.argument(2).toBool());
    return reduction_rule(call, reduced, [reduced, mesh = call.mesh(), max](const Tensor& local) {
      return std::vector<Tensor>{over_ranks(local, reduced, mesh, max)};
    });
  };
}

Rule extremum_of_all(bool max) {  // max(self), min
  return [max](const OpCall& call) {
    const auto reduced = all_dims_reduced(call);
    return reduction_rule(call, reduced, [reduced, mesh = call.mesh(), max](const Tensor& local) {
      return std::vector<Tensor>{over_ranks(local, reduced, mesh, max)};
    });
  };
}

std::optional<Decision> aminmax(const OpCall& call) {  // (self, *, dim, keepdim)
  const auto reduced = reduced_dims(call, 1, call.argument(2).toBool());
  return reduction_rule(call, reduced, [reduced, mesh = call.mesh()](const Tensor& local) {
    return std::vector<Tensor>{over_ranks(local, reduced, mesh, false),
                               over_ranks(local, reduced, mesh, true)};
  });
}

}  // namespace

SHARD_PATCH(extrema) {
  patch.rule("aten::amax", extremum(true)).shards("any dim").needs_values();
  patch.rule("aten::amin", extremum(false)).shards("any dim").needs_values();
  patch.rule("aten::aminmax", aminmax).shards("any dim").needs_values();
  patch.remembering_rule("aten::max", extremum_of_all(true)).shards("any dim").needs_values();
  patch.remembering_rule("aten::min", extremum_of_all(false)).shards("any dim").needs_values();
}

}  // namespace shard
