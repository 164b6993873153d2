// SPDX-License-Identifier: Apache-2.0
// Products. Over a sharded dim: the product of the ranks' products; both steps are LibTorch's own,
// so that zeros (also on several ranks) have the right gradients.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/prod.h>
#include <shard/reduction_patch.h>

namespace shard {
namespace {

using at::Tensor;
using Dtype = std::optional<at::ScalarType>;

Tensor of_ranks(const Tensor& local, const ReductionInput& input) {
  if (!input.reduces_shard || input.mesh.size() == 1)
    return from_reduction(local, input, Replicate());
  return from_reduction(at::prod(all_gather_stack(local, input.mesh), 0), input, Replicate());
}

Tensor prod(const Tensor& x, Dtype dtype) {
  const auto input = reduction_input(x, std::nullopt, false);
  return of_ranks(at::prod(to_local(input.tensor), dtype), input);
}

Tensor prod_dim(const Tensor& x, int64_t dim, bool keepdim, Dtype dtype) {
  const auto input = reduction_input(x, dim, keepdim);
  return of_ranks(at::prod(to_local(input.tensor), dim, keepdim, dtype), input);
}

}  // namespace

SHARD_PATCH(prod) {
  patch.function<at::_ops::prod>(prod).shards("any dim");
  patch.function<at::_ops::prod_dim_int>(prod_dim).shards("any dim");
}

}  // namespace shard
