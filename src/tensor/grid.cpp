// SPDX-License-Identifier: Apache-2.0
#include "tensor/grid.h"

#include <ATen/ops/zeros_like.h>
#include <shard/error.h>
#include <shard/primitives.h>

#include <algorithm>

#include "tensor/impl.h"

namespace shard {
namespace {

using at::Tensor;

int64_t ranks_of(const DeviceMesh& mesh, const std::vector<int64_t>& dims) {
  int64_t ranks = 1;
  for (const int64_t d : dims) ranks *= mesh.size(d);
  return ranks;
}

/// Of the rank with this number in the mesh, row-major.
int64_t coordinate(const DeviceMesh& mesh, int64_t rank, int64_t dim) {
  for (int64_t d = mesh.ndim() - 1; d > dim; --d) rank /= mesh.size(d);
  return rank % mesh.size(dim);
}

Placement wrapped(const Placement& placement, c10::IntArrayRef shape) {
  if (!placement.is_shard()) return placement;
  const auto ndim = static_cast<int64_t>(shape.size());
  const int64_t dim = placement.dim();
  check<SpecMismatch>(dim >= -ndim && dim < ndim, "spec", "got ", placement, " for shape ", shape,
                      "; expected a tensor dim in [", -ndim, ", ", ndim, ").");
  return Shard(dim < 0 ? dim + ndim : dim);
}

Box overlap(const Box& a, const Box& b) {
  Box result = a;
  for (size_t d = 0; d < a.begin.size(); ++d) {
    result.begin[d] = std::max(a.begin[d], b.begin[d]);
    result.size[d] = std::min(a.begin[d] + a.size[d], b.begin[d] + b.size[d]) - result.begin[d];
  }
  return result;
}

bool is_empty(const Box& box) {
  return std::any_of(box.size.begin(), box.size.end(), [](int64_t size) { return size <= 0; });
}

/// The part of a local tensor that holds `box`.
Tensor part_of(Tensor local, const Box& own, const Box& part) {
  for (size_t d = 0; d < part.begin.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (part.size[d] == own.size[d]) continue;
    local = local.narrow(dim, part.begin[d] - own.begin[d], part.size[d]);
  }
  return local;
}

/// Whether `rank` holds what this rank would take from it: of what is replicated (or pending) every
/// rank has its own copy, and takes it from those at its own place.
bool is_source(const Grid& grid, int64_t rank, int64_t taker) {
  return std::all_of(grid.cuts.begin(), grid.cuts.end(), [&](const Grid::Cut& cut) {
    return cut.placement.is_shard() || grid.place(cut, rank) == grid.place(cut, taker);
  });
}

Tensor exchange_boxes(const Tensor& local, const Grid& from, const Grid& to) {
  const auto& comm = from.mesh.comm();
  const int64_t me = comm.rank();
  const Box own = from.box(me);
  const Box wanted = to.box(me);
  const Tensor result = empty_of_shape(local, wanted.size);
  std::vector<Message> sends;
  std::vector<Message> receives;
  for (int64_t peer = 0; peer < comm.size(); ++peer) {
    const Box out = overlap(own, to.box(peer));
    const Box in = overlap(from.box(peer), wanted);
    if (is_source(from, me, peer) && !is_empty(out)) {
      sends.push_back({static_cast<int>(peer), part_of(local, own, out)});
    }
    if (is_source(from, peer, me) && !is_empty(in)) {
      receives.push_back({static_cast<int>(peer), part_of(result, wanted, in)});
    }
  }
  comm.exchange(sends, receives);
  return result;
}

bool has_cut(const Grid& grid, const Grid::Cut& cut) {
  return std::find(grid.cuts.begin(), grid.cuts.end(), cut) != grid.cuts.end();
}

/// Reduces what is pending and does not stay so.
Tensor reduce_pending(Tensor local, Grid& from, const Grid& to) {
  for (auto& cut : from.cuts) {
    if (!cut.placement.is_partial() || has_cut(to, cut)) continue;
    Tensor sum = local.clone();
    from.mesh.flattened(cut.mesh_dims).comm().all_reduce(sum, cut.placement.op());
    local = sum;
    cut.placement = Replicate();
  }
  return local;
}

/// A contribution per rank whose reduction is the value.
Tensor as_pending(Tensor local, const Grid& from, const Grid& to) {
  for (const auto& cut : to.cuts) {
    if (!cut.placement.is_partial() || has_cut(from, cut)) continue;
    const bool keep = cut.placement.op() != ReduceOp::Sum || to.place(cut, to.mesh.rank()) == 0;
    local = keep ? local.clone() : at::zeros_like(local);  // never an alias of what is replicated
  }
  return local;
}

}  // namespace

Grid Grid::make(const DeviceMesh& mesh, const Placements& placements, c10::IntArrayRef shape,
                const std::vector<Partition>& partitions) {
  const auto dims = static_cast<size_t>(mesh.ndim());
  check<SpecMismatch>(
      placements.size() == dims && (partitions.empty() || partitions.size() == dims), "spec",
      "got ", placements.size(), " placements and ", partitions.size(), " partitions on a mesh of ",
      dims, " dims (", mesh.layout(),
      "); expected one placement a mesh dim (and one partition, or none). Take one "
      "dim of the mesh, e.g. mesh[\"",
      mesh.layout().dims[0].name, "\"], or pass one for each.");
  Grid grid{mesh, {}, Shape(shape)};
  for (size_t k = 0; k < dims; ++k) {
    const Placement placement = wrapped(placements[k], shape);
    const auto same_cut = std::find_if(grid.cuts.begin(), grid.cuts.end(), [&](const Cut& cut) {
      return placement.is_shard() && cut.placement == placement;
    });
    if (same_cut != grid.cuts.end()) {
      same_cut->mesh_dims.push_back(static_cast<int64_t>(k));
    } else {
      grid.cuts.push_back(
          {{static_cast<int64_t>(k)},
           placement,
           partitions.empty() || !placement.is_shard() ? Partition{} : partitions[k]});
    }
  }
  for (auto& cut : grid.cuts) {
    if (!cut.placement.is_shard()) continue;
    const int64_t n = shape[static_cast<size_t>(cut.placement.dim())];
    if (cut.partition.empty()) cut.partition = even_partition(n, ranks_of(mesh, cut.mesh_dims));
    // Checks the sizes.
    ShardTensorSpec::make(mesh.flattened(cut.mesh_dims).layout_ref(), cut.placement, shape,
                          cut.partition);
  }
  return grid;
}

Grid Grid::of(const Tensor& tensor) { return of(*impl_of(tensor)); }

Grid Grid::of(const ShardTensorImpl& impl) {
  Grid grid{impl.mesh().root(), {}, Shape(impl.spec()->global_shape())};
  std::vector<bool> seen(static_cast<size_t>(grid.mesh.ndim()), false);
  for (const auto* level = &impl; level; level = impl_of(level->local())) {
    check<SpecMismatch>(level->mesh().root().layout() == grid.mesh.layout(), "spec",
                        "got levels on the meshes ", grid.mesh.layout(), " and ",
                        level->mesh().root().layout(),
                        "; expected one mesh. Make all tensors on the same mesh.");
    grid.cuts.push_back(
        {level->mesh().root_dims(), level->spec()->placement(), level->spec()->partition()});
    for (const int64_t d : level->mesh().root_dims()) seen[static_cast<size_t>(d)] = true;
  }
  for (size_t d = 0; d < seen.size(); ++d) {
    if (!seen[d]) grid.cuts.push_back({{static_cast<int64_t>(d)}, Replicate(), {}});
  }
  std::sort(grid.cuts.begin(), grid.cuts.end(),
            [](const Cut& a, const Cut& b) { return a.mesh_dims < b.mesh_dims; });
  return grid;
}

Placements Grid::placements() const {
  Placements result(static_cast<size_t>(mesh.ndim()), Replicate());
  for (const auto& cut : cuts) {
    for (const int64_t d : cut.mesh_dims) result[static_cast<size_t>(d)] = cut.placement;
  }
  return result;
}

std::vector<Level> Grid::levels() const {
  std::vector<Level> levels;
  Shape rest = shape;
  for (const auto& cut : cuts) {
    const auto level = mesh.flattened(cut.mesh_dims);
    levels.push_back(
        {level, ShardTensorSpec::make(level.layout_ref(), cut.placement, rest, cut.partition)});
    rest = levels.back().spec->local_shape(level.rank());
  }
  std::reverse(levels.begin(), levels.end());
  return levels;
}

Grid Grid::dual() const {
  Grid result = *this;
  for (auto& cut : result.cuts) {
    if (cut.placement.is_partial()) cut.placement = Replicate();
  }
  return result;
}

int64_t Grid::place(const Cut& cut, int64_t rank) const {
  int64_t place = 0;
  for (const int64_t d : cut.mesh_dims) place = place * mesh.size(d) + coordinate(mesh, rank, d);
  return place;
}

Box Grid::box(int64_t rank) const {
  Box result{Shape(shape.size(), 0), shape};
  for (const auto& cut : cuts) {
    if (!cut.placement.is_shard()) continue;
    const auto dim = static_cast<size_t>(cut.placement.dim());
    result.begin[dim] = offset_of(cut.partition, place(cut, rank));
    result.size[dim] = cut.partition[static_cast<size_t>(place(cut, rank))];
  }
  return result;
}

bool Grid::same_layout(const Grid& other) const {
  return cuts == other.cuts && mesh.layout() == other.mesh.layout();
}

Tensor wrap(const Tensor& local, const Grid& grid) {
  Tensor result = local;
  for (const Level& level : grid.levels()) {
    result = wrap(std::move(result), level.mesh, level.spec);
  }
  return result;
}

Tensor redistribute_local(const Tensor& local, const Grid& from, const Grid& to) {
  Grid whole = from;
  Tensor result = reduce_pending(local, whole, to);
  Grid target = to;  // what becomes pending is replicated until the end
  for (auto& cut : target.cuts) {
    if (cut.placement.is_partial() && !has_cut(from, cut)) cut.placement = Replicate();
  }
  if (!whole.same_layout(target)) result = exchange_boxes(result, whole, target);
  return as_pending(result, from, to);
}

}  // namespace shard
