// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <shard/communicator.h>
#include <torch/types.h>

#include <vector>

namespace shard::testing {

/// The reduction that communicators promise, by LibTorch's own ops: one after the other in rank
/// order; bf16 and half in float, rounded once at the end.
inline torch::Tensor reduced_in_rank_order(const std::vector<torch::Tensor>& all, ReduceOp op) {
  const auto dtype = all[0].scalar_type();
  const bool is_short = dtype == torch::kHalf || dtype == torch::kBFloat16;
  const auto wide = [&](const torch::Tensor& t) { return is_short ? t.to(torch::kFloat) : t; };
  torch::Tensor result = wide(all[0]).clone();
  for (size_t r = 1; r < all.size(); ++r) {
    const torch::Tensor next = wide(all[r]);
    if (op == ReduceOp::Max) result = torch::maximum(result, next);
    if (op == ReduceOp::Min) result = torch::minimum(result, next);
    if (op == ReduceOp::Sum || op == ReduceOp::Avg) result = result + next;
  }
  if (op == ReduceOp::Avg) result = result / static_cast<double>(all.size());
  return result.to(dtype);
}

}  // namespace shard::testing
