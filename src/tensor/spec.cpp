// SPDX-License-Identifier: Apache-2.0
#include <shard/error.h>
#include <shard/spec.h>

#include <numeric>

namespace shard {

std::ostream& operator<<(std::ostream& out, const Placement& placement) {
  if (placement.is_shard()) return out << "Shard(" << placement.dim() << ")";
  if (placement.is_replicate()) return out << "Replicate";
  return out << "Partial(" << name_of(placement.op()) << ")";
}

std::ostream& operator<<(std::ostream& out, const Placements& placements) {
  out << "(";
  for (size_t i = 0; i < placements.size(); ++i) out << (i ? ", " : "") << placements[i];
  return out << ")";
}

Partition chunk_partition(int64_t n, int64_t parts) {
  const int64_t rows = (n + parts - 1) / parts;
  Partition sizes(static_cast<size_t>(parts));
  for (auto& size : sizes) {
    size = std::min(rows, n);
    n -= size;
  }
  return sizes;
}

Partition even_partition(int64_t n, int64_t parts) {
  Partition sizes(static_cast<size_t>(parts), n / parts);
  for (int64_t i = 0; i < n % parts; ++i) ++sizes[static_cast<size_t>(i)];
  return sizes;
}

int64_t offset_of(const Partition& partition, int64_t index) {
  return std::accumulate(partition.begin(), partition.begin() + index, int64_t{0});
}

namespace {

void check_partition(const Partition& partition, int64_t dim, int64_t n, int64_t ranks) {
  const auto total = std::accumulate(partition.begin(), partition.end(), int64_t{0});
  const bool negative =
      std::any_of(partition.begin(), partition.end(), [](int64_t size) { return size < 0; });
  check<SpecMismatch>(static_cast<int64_t>(partition.size()) == ranks && total == n && !negative,
                      "spec", "partition of tensor dim ", dim, ": got pieces ",
                      c10::IntArrayRef(partition), "; expected ", ranks,
                      " sizes >= 0 that add up to ", n, ".");
}

}  // namespace

SpecRef ShardTensorSpec::make(std::shared_ptr<const MeshLayout> mesh, Placement placement,
                              c10::IntArrayRef global_shape, Partition partition) {
  check<SpecMismatch>(mesh->ndim() == 1, "spec", "got a mesh of ", mesh->ndim(), " dims (", *mesh,
                      "); expected a 1-d mesh. Take one dim of it: mesh[\"", mesh->dims[0].name,
                      "\"].");
  const auto ndim = static_cast<int64_t>(global_shape.size());
  if (placement.is_shard()) {
    int64_t dim = placement.dim();
    check<SpecMismatch>(dim >= -ndim && dim < ndim, "spec", "got ", placement, " for shape ",
                        global_shape, "; expected a tensor dim in [", -ndim, ", ", ndim, ").");
    if (dim < 0) dim += ndim;
    placement = Shard(dim);
    const int64_t n = global_shape[static_cast<size_t>(dim)];
    if (partition.empty()) partition = even_partition(n, mesh->numel());
    check_partition(partition, dim, n, mesh->numel());
  } else {
    partition.clear();
  }
  return SpecRef(new ShardTensorSpec(std::move(mesh), placement,
                                     Shape(global_shape.begin(), global_shape.end()),
                                     std::move(partition)));
}

ShardTensorSpec::ShardTensorSpec(std::shared_ptr<const MeshLayout> mesh, Placement placement,
                                 Shape global_shape, Partition partition)
    : mesh_(std::move(mesh)),
      placement_(placement),
      global_shape_(std::move(global_shape)),
      partition_(std::move(partition)) {}

Shape ShardTensorSpec::local_shape(int64_t rank) const {
  Shape shape = global_shape_;
  if (is_shard()) shape[static_cast<size_t>(shard_dim())] = local_size(rank);
  return shape;
}

int64_t ShardTensorSpec::offset(int64_t rank) const {
  return is_shard() ? offset_of(partition_, rank) : 0;
}

SpecRef ShardTensorSpec::with_shape(c10::IntArrayRef global_shape) const {
  return make(mesh_, placement_, global_shape, partition_);
}

SpecRef ShardTensorSpec::with(Placement placement, c10::IntArrayRef global_shape,
                              Partition partition) const {
  return make(mesh_, placement, global_shape, std::move(partition));
}

bool ShardTensorSpec::same_layout(const ShardTensorSpec& other) const {
  return placement_ == other.placement_ && partition_ == other.partition_ &&
         (mesh_ == other.mesh_ || *mesh_ == *other.mesh_);
}

bool ShardTensorSpec::operator==(const ShardTensorSpec& other) const {
  return global_shape() == other.global_shape() && same_layout(other);
}

std::ostream& operator<<(std::ostream& out, const ShardTensorSpec& spec) {
  out << spec.placement() << " of " << spec.global_shape();
  if (spec.is_shard()) out << " in pieces " << c10::IntArrayRef(spec.partition());
  return out << " over " << spec.mesh();
}

}  // namespace shard
