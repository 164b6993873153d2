// SPDX-License-Identifier: Apache-2.0
// Grid: how a tensor lies over all dims of a mesh at once. Levels (NOTE [Levels] in impl.h) are how
// ops see it; the grid is how whole tensors are made, moved and described.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/mesh.h>
#include <shard/spec.h>

#include <vector>

namespace shard {

class ShardTensorImpl;

/// What one rank holds: begin and size along every tensor dim.
struct Box {
  Shape begin;
  Shape size;
};

/// One level of a tensor: the mesh it is over, flattened from the tensor's, and how it lies there.
struct Level {
  DeviceMesh mesh;
  SpecRef spec;
};

struct Grid {
  /// The mesh dims of one level: several where they cut the same tensor dim.
  struct Cut {
    std::vector<int64_t> mesh_dims;  ///< ascending
    Placement placement;
    Partition partition;  ///< of a Shard
    bool operator==(const Cut&) const = default;
  };
  DeviceMesh mesh;
  std::vector<Cut> cuts;  ///< by first mesh dim; together all mesh dims
  Shape shape;            ///< global

  /// One placement a mesh dim. `partitions`: one a mesh dim, or none; empty ones are even. Where
  /// several mesh dims cut one tensor dim, the first of them has all pieces. Errors: SpecMismatch.
  static Grid make(const DeviceMesh& mesh, const Placements& placements, c10::IntArrayRef shape,
                   const std::vector<Partition>& partitions = {});
  static Grid of(const at::Tensor& tensor);
  static Grid of(const ShardTensorImpl& impl);

  Placements placements() const;
  /// Innermost first, the order in which they wrap the local tensor.
  std::vector<Level> levels() const;
  /// Pending reductions become Replicate: where gradients lie.
  Grid dual() const;
  /// This rank's place along a cut, and that of any rank of the mesh.
  int64_t place(const Cut& cut, int64_t rank) const;
  Box box(int64_t rank) const;
  bool same_layout(const Grid& other) const;
};

/// The ShardTensor with this local part; no autograd, nothing checked.
at::Tensor wrap(const at::Tensor& local, const Grid& grid);
/// Moves `tensor` to `target` over the same mesh, differentiable. Collective over the mesh.
at::Tensor redistribute(const at::Tensor& tensor, const Grid& target);
/// The local part of `to` given that of `from`, without autograd: pending reductions first, then
/// one exchange among all ranks. Collective over the mesh.
at::Tensor redistribute_local(const at::Tensor& local, const Grid& from, const Grid& to);

}  // namespace shard
