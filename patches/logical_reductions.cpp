// SPDX-License-Identifier: Apache-2.0
// any and all, and the exclusive or of all bits.
#include <ATen/ops/all.h>
#include <ATen/ops/any.h>
#include <ATen/ops/hash_tensor.h>
#include <shard/reduction_patch.h>

namespace shard {
namespace {

using at::Tensor;

Decision decide(const OpCall& call, const ReducedDims& reduced, bool any) {
  return *reduction_rule(call, reduced, [reduced, mesh = call.mesh(), any](const Tensor& local) {
    const Tensor mine = any ? at::any(local, reduced.dims, reduced.keepdim)
                            : at::all(local, reduced.dims, reduced.keepdim);
    return std::vector<Tensor>{reduced_over_ranks(mine, mesh, any ? ReduceOp::Max : ReduceOp::Min)};
  });
}

Rule over_dims(bool any) {  // any.dim(self, dim, keepdim), any.dims, all.dim, all.dims
  return [any](const OpCall& call) -> std::optional<Decision> {
    return decide(call, reduced_dims(call, 1, call.argument(2).toBool()), any);
  };
}

Rule over_all(bool any) {  // any(self), all(self)
  return [any](const OpCall& call) -> std::optional<Decision> {
    return decide(call, all_dims_reduced(call), any);
  };
}

/// hash_tensor(self, dim, *, keepdim, mode)
std::optional<Decision> hash(const OpCall& call) {
  const auto reduced = reduced_dims(call, 1, call.argument(2).toBool());
  const int64_t mode = call.argument(3).toInt();
  return reduction_rule(call, reduced, [=, mesh = call.mesh()](const Tensor& local) {
    const bool has_any = reduced.local_count(local) > 0;
    const Tensor own =
        has_any ? at::hash_tensor(local, reduced.dims, reduced.keepdim, mode).to(at::kLong)
                : result_of_nothing(local, reduced, 0, at::kLong);
    const Tensor all = gathered_over_ranks(own, mesh);
    Tensor result = all.select(0, 0).clone();
    for (int64_t rank = 1; rank < mesh.size(); ++rank) result.bitwise_xor_(all.select(0, rank));
    return std::vector<Tensor>{result.to(at::kUInt64)};
  });
}

}  // namespace

SHARD_PATCH(logical_reductions) {
  for (const bool any : {true, false}) {
    const std::string op = any ? "aten::any" : "aten::all";
    patch.rule(op, over_all(any)).shards("any dim").needs_values();
    patch.rule(op + ".dim", over_dims(any)).shards("any dim").needs_values();
    patch.rule(op + ".dims", over_dims(any)).shards("any dim").needs_values();
  }
  patch.rule("aten::hash_tensor", hash).shards("any dim").needs_values();
  patch.rule("aten::_is_any_true", over_all(true))
      .shards("any dim")
      .needs_values();  // anomaly mode asks it
  patch.rule("aten::_is_all_true", over_all(false)).shards("any dim").needs_values();
}

}  // namespace shard
