// SPDX-License-Identifier: Apache-2.0
// What group and layer normalization share: statistics over elements that lie on several ranks.
#pragma once

#include <shard/bottom.h>
#include <shard/patch.h>

#include <vector>

namespace shard {

/// A contiguous local tensor seen as (batch, channels, inner), channels in `groups` equal groups.
/// The elements of one group of one sample lie on all ranks, `counts[r]` of them on rank r (zero is
/// normal).
struct GroupShape {
  int64_t batch = 1;
  int64_t channels = 1;
  int64_t groups = 1;
  int64_t inner = 1;
  std::vector<int64_t> counts;

  int64_t total() const;  ///< elements of a group, globally
  int64_t group_elements() const { return channels / groups * inner; }  ///< on this rank
};

/// What a group was normalized with: (batch, groups), double. The variance is the biased one.
struct GroupStatistics {
  at::Tensor mean;
  at::Tensor variance;
};

/// (x - mean) / sqrt(variance + eps) * weight + bias per group, weight and bias (channels) plain or
/// undefined. One small message forward, one backward, which also completes the gradients of weight
/// and bias. Differentiable twice.
at::Tensor normalize_groups(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const GroupShape& shape, double eps, const DeviceMesh& mesh,
                            GroupStatistics* used = nullptr);

/// A weight or bias as a plain tensor on every rank, differentiable. Collective if it is cut.
at::Tensor whole(const at::Tensor& parameter);

}  // namespace shard
