// SPDX-License-Identifier: Apache-2.0
// Placement and ShardTensorSpec: how a global tensor lies over a mesh. A spec is an immutable
// value, the same on every rank, so every rank knows every shard's shape and offset without
// communicating.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <shard/communicator.h>
#include <shard/mesh.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <vector>

namespace shard {

/// How a tensor lies along one mesh dim: cut along a tensor dim, equal everywhere, or a pending
/// reduction of per-rank contributions.
class Placement {
 public:
  enum class Kind : uint8_t { Replicate, Shard, Partial };

  Kind kind() const { return kind_; }
  bool is_shard() const { return kind_ == Kind::Shard; }
  bool is_shard(int64_t dim) const { return kind_ == Kind::Shard && dim_ == dim; }
  bool is_replicate() const { return kind_ == Kind::Replicate; }
  bool is_partial() const { return kind_ == Kind::Partial; }
  int64_t dim() const { return dim_; }  ///< tensor dim of a Shard
  ReduceOp op() const { return op_; }   ///< of a Partial
  bool operator==(const Placement&) const = default;

 private:
  friend Placement Shard(int64_t);
  friend Placement Replicate();
  friend Placement Partial(ReduceOp);
  Placement(Kind kind, int64_t dim, ReduceOp op) : dim_(dim), kind_(kind), op_(op) {}
  int64_t dim_;
  Kind kind_;
  ReduceOp op_;
};

/// Cut along tensor dim `dim` (negative counts from the end where a shape is known).
inline Placement Shard(int64_t dim) { return {Placement::Kind::Shard, dim, ReduceOp::Sum}; }
inline Placement Replicate() { return {Placement::Kind::Replicate, -1, ReduceOp::Sum}; }
inline Placement Partial(ReduceOp op = ReduceOp::Sum) { return {Placement::Kind::Partial, -1, op}; }
std::ostream& operator<<(std::ostream& out, const Placement& placement);

using Placements = std::vector<Placement>;  ///< one a mesh dim
std::ostream& operator<<(std::ostream& out, const Placements& placements);
using Shape = c10::SmallVector<int64_t, 6>;

/// The sizes of the pieces of one cut, in rank order; zero is a normal size.
using Partition = std::vector<int64_t>;
/// The rule of torch.chunk made total: ceil(n/parts) rows each, then the rest, then zeros.
Partition chunk_partition(int64_t n, int64_t parts);
/// As even as possible: sizes differ by at most one, larger ones first.
Partition even_partition(int64_t n, int64_t parts);
int64_t offset_of(const Partition& partition, int64_t index);

/// Global rows [begin, end) of a sharded dim.
struct Rows {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

class ShardTensorSpec;
using SpecRef = std::shared_ptr<const ShardTensorSpec>;

/// How a tensor lies over a 1-d mesh. On an n-d mesh there is one for each level: the spec over the
/// first mesh dim, then that of the local tensor over the others, and so on.
class ShardTensorSpec {
 public:
  /// `partition` gives the piece sizes of a Shard (must add up to the sharded dim's size; empty:
  /// even_partition) and is ignored otherwise. Errors: SpecMismatch.
  static SpecRef make(std::shared_ptr<const MeshLayout> mesh, Placement placement,
                      c10::IntArrayRef global_shape, Partition partition = {});

  const MeshLayout& mesh() const { return *mesh_; }
  const std::shared_ptr<const MeshLayout>& mesh_ref() const { return mesh_; }
  Placement placement() const { return placement_; }
  Placements placements() const { return {placement_}; }
  c10::IntArrayRef global_shape() const { return global_shape_; }
  int64_t ranks() const { return mesh_->numel(); }

  bool is_shard() const { return placement_.is_shard(); }
  bool is_replicate() const { return placement_.is_replicate(); }
  bool is_partial() const { return placement_.is_partial(); }
  int64_t shard_dim() const { return placement_.dim(); }  ///< -1 unless is_shard()
  const Partition& partition() const { return partition_; }

  /// Shape of the local tensor of `rank`, and where it begins along the sharded dim (0 otherwise).
  Shape local_shape(int64_t rank) const;
  int64_t local_size(int64_t rank) const { return partition_[static_cast<size_t>(rank)]; }
  int64_t offset(int64_t rank) const;

  /// Same mesh and placement on another shape. Shard: the dim's size must be unchanged unless a
  /// partition is given.
  SpecRef with_shape(c10::IntArrayRef global_shape) const;
  SpecRef with(Placement placement, c10::IntArrayRef global_shape, Partition partition = {}) const;
  SpecRef replicated() const { return with(Replicate(), global_shape()); }

  bool operator==(const ShardTensorSpec& other) const;
  /// Same placement and partition, whatever the global shape.
  bool same_layout(const ShardTensorSpec& other) const;

 private:
  ShardTensorSpec(std::shared_ptr<const MeshLayout> mesh, Placement placement, Shape global_shape,
                  Partition partition);
  std::shared_ptr<const MeshLayout> mesh_;
  Placement placement_;
  Shape global_shape_;
  Partition partition_;
};
inline bool same(const SpecRef& a, const SpecRef& b) { return a == b || *a == *b; }
std::ostream& operator<<(std::ostream& out, const ShardTensorSpec& spec);

}  // namespace shard
