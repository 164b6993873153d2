// SPDX-License-Identifier: Apache-2.0
// What group and layer normalization share: statistics over elements that lie on several ranks.
#pragma once

#include <shard/patch.h>

#include <memory>
#include <vector>

namespace shard {

struct Grid;

/// The plain tensor below all levels of a ShardTensor, for ops that treat several mesh dims as one.
/// Differentiable; pending sums are reduced.
class Bottom {
 public:
  explicit Bottom(const at::Tensor& x);
  ~Bottom();
  Bottom(const Bottom&) = delete;
  Bottom& operator=(const Bottom&) = delete;

  at::Tensor local;
  /// A result of the same sizes under all levels again.
  at::Tensor wrapped(at::Tensor y) const;
  /// The 1-d mesh of the ranks that share a line along these tensor dims, and how many elements of
  /// it each of them has; undefined when none is cut.
  DeviceMesh mesh_across(const std::vector<int64_t>& dims) const;
  std::vector<int64_t> counts_across(const std::vector<int64_t>& dims) const;
  /// The 1-d mesh along which other tensor dims are cut; undefined when none is.
  DeviceMesh mesh_beside(const std::vector<int64_t>& dims) const;
  /// This rank's rows of a dim.
  Rows own(int64_t dim) const;

  struct Level {
    DeviceMesh mesh;
    SpecRef spec;
  };

 private:
  std::vector<Level> levels_;  // outermost first
  std::unique_ptr<const Grid> grid_;
};

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

/// `x` (batch, channels, ...) with whole channels on every rank: a level that cuts them cuts the
/// largest dim instead that is not cut yet (none: it is replicated). Differentiable.
at::Tensor with_whole_channels(const at::Tensor& x);
/// A weight or bias as a plain tensor on every rank, differentiable. Collective if it is cut.
at::Tensor whole(const at::Tensor& parameter);

}  // namespace shard
