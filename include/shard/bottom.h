// SPDX-License-Identifier: Apache-2.0
// The plain tensor below all levels of a ShardTensor, for ops that treat several mesh dims as one.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/mesh.h>
#include <shard/spec.h>

#include <map>
#include <memory>
#include <vector>

namespace shard {

struct Grid;
struct Level;

/// A tensor dim that is cut over several ranks, at whatever level.
struct Cut {
  int64_t dim = 0;
  Partition owned;
  std::vector<int64_t> places;  ///< of the ranks of the mesh across all cuts asked for
};

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
  /// A result of other sizes; `partitions` has the new ones of cut dims.
  at::Tensor wrapped(at::Tensor y, const std::map<int64_t, Partition>& partitions) const;
  /// Those of these tensor dims that are cut over several ranks, outermost level first.
  std::vector<Cut> cuts_along(const std::vector<int64_t>& dims) const;
  /// The 1-d mesh of the ranks that share a line along these tensor dims, and how many elements of
  /// it each of them has; undefined when none is cut.
  DeviceMesh mesh_across(const std::vector<int64_t>& dims) const;
  std::vector<int64_t> counts_across(const std::vector<int64_t>& dims) const;
  /// The 1-d mesh along which other tensor dims are cut; undefined when none is.
  DeviceMesh mesh_beside(const std::vector<int64_t>& dims) const;
  /// This rank's rows of a dim.
  Rows own(int64_t dim) const;

 private:
  int64_t root_rank(const DeviceMesh& mesh, int64_t rank) const;

  std::vector<Level> levels_;  // outermost first
  std::unique_ptr<const Grid> grid_;
};

/// `x` with a whole dim on every rank: a level that cuts it cuts the largest dim instead that is
/// not cut yet (none: it is replicated). Differentiable.
at::Tensor with_whole_dim(const at::Tensor& x, int64_t dim);

}  // namespace shard
