// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <shard/reduction_patch.h>

namespace shard {
namespace {

using at::Tensor;

/// The largest value of each row, 0 where it is infinite (inf - inf would be NaN).
Tensor row_shift(const Tensor& x, const ReducedDims& reduced, const DeviceMesh& mesh) {
  auto kept = reduced;
  kept.keepdim = true;
  const Tensor mine =
      reduced.local_count(x) == 0
          ? result_of_nothing(x, kept, extremum_of_nothing(x.scalar_type(), true), x.scalar_type())
          : at::amax(x, reduced.dims, true);
  const Tensor largest = reduced_over_ranks(mine, mesh, ReduceOp::Max);
  return largest.masked_fill(largest.isinf(), 0);
}

Tensor across_ranks(const Tensor& local, const ReducedDims& reduced, const DeviceMesh& mesh) {
  const Tensor x = at::isIntegralType(local.scalar_type(), true)
                       ? local.to(c10::get_default_dtype_as_scalartype())
                       : local;
  const Tensor shift = row_shift(x, reduced, mesh);
  const Tensor sum = reduced_over_ranks((x - shift).exp_().sum(reduced.dims, reduced.keepdim), mesh,
                                        ReduceOp::Sum);
  return sum.log().add_(shift.view(sum.sizes()));
}

std::optional<Decision> logsumexp(const OpCall& call) {  // (self, dim, keepdim)
  const auto reduced = reduced_dims(call, 1, call.argument(2).toBool());
  return reduction_rule(call, reduced, [reduced, mesh = call.mesh()](const Tensor& local) {
    return std::vector<Tensor>{across_ranks(local, reduced, mesh)};
  });
}

}  // namespace

SHARD_PATCH(logsumexp) {
  patch.rule("aten::logsumexp", logsumexp).shards("any dim").needs_values();
}

}  // namespace shard
