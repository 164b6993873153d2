// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Formatting.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/WrapDimMinimal.h>
#include <shard/memory_order.h>
#include <shard/primitives.h>
#include <shard/tensor.h>

#include <sstream>

#include "tensor/grid.h"
#include "tensor/impl.h"

namespace shard {
namespace {

using at::Tensor;

/// The partitions of all mesh dims, given that of the only dim that is cut.
std::vector<Partition> partition_of_the_shard(const Placements& placements, Partition partition) {
  if (partition.empty()) return {};
  std::vector<Partition> result(placements.size());
  for (size_t i = 0; i < placements.size(); ++i) {
    if (!placements[i].is_shard()) continue;
    result[i] = std::move(partition);
    break;
  }
  return result;
}

/// What a rank says about its tensor, as text: every rank reads every rank's and raises the same
/// error.
struct Description {
  std::string dtype = "undefined";
  Shape sizes;
  Shape strides;
  bool defined() const { return dtype != "undefined"; }
};

std::string encode(const Tensor& tensor) {
  std::ostringstream text;
  if (!tensor.defined()) return "undefined";
  text << static_cast<int>(tensor.scalar_type());
  for (const int64_t size : tensor.sizes()) text << ' ' << size;
  for (const int64_t stride : tensor.strides()) text << ' ' << stride;
  return text.str();
}

Description decode(const std::string& text) {
  Description result;
  std::istringstream stream(text);
  stream >> result.dtype;
  int64_t number = 0;
  while (stream >> number) result.sizes.push_back(number);
  const auto ndim = result.sizes.size() / 2;
  result.strides.assign(result.sizes.begin() + static_cast<std::ptrdiff_t>(ndim),
                        result.sizes.end());
  result.sizes.resize(ndim);
  return result;
}

c10::ScalarType scalar_type(const Description& description) {
  return static_cast<c10::ScalarType>(std::stoi(description.dtype));
}

/// Sizes of the pieces along the dims that are cut, from the parts that lie along each of them at
/// the first place of all others.
Grid grid_of_parts(const std::vector<Description>& parts, const DeviceMesh& mesh,
                   const Placements& placements) {
  Shape shape = parts[0].sizes;
  Grid grid = Grid::make(mesh, placements, shape);
  for (auto& cut : grid.cuts) {
    if (!cut.placement.is_shard()) continue;
    const auto dim = static_cast<size_t>(cut.placement.dim());
    cut.partition.clear();
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      const bool is_first = std::all_of(
          grid.cuts.begin(), grid.cuts.end(),
          [&](const Grid::Cut& other) { return &other == &cut || grid.place(other, rank) == 0; });
      const auto& part = parts[static_cast<size_t>(rank)];
      if (is_first) cut.partition.push_back(dim < part.sizes.size() ? part.sizes[dim] : 0);
    }
    shape[dim] = offset_of(cut.partition, static_cast<int64_t>(cut.partition.size()));
  }
  grid.shape = shape;
  return grid;
}

void check_parts_fit(const std::vector<Description>& parts, const Grid& grid,
                     const Placements& placements) {
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const auto& part = parts[rank];
    const bool fits = part.defined() && part.dtype == parts[0].dtype &&
                      part.sizes == grid.box(static_cast<int64_t>(rank)).size;
    check<SpecMismatch>(
        fits, "from_local", "got a local tensor of ", c10::IntArrayRef(part.sizes), " (dtype ",
        part.dtype, ") on rank ", rank, " and of ", c10::IntArrayRef(parts[0].sizes), " (dtype ",
        parts[0].dtype,
        ") on rank 0; expected the same dtype and sizes, except along a sharded dim (", placements,
        ").");
  }
}

Grid agree_on_grid(const Tensor& local, const DeviceMesh& mesh, const Placements& placements) {
  std::vector<Description> parts;
  for (const auto& text : mesh.comm().all_gather_bytes(encode(local)))
    parts.push_back(decode(text));
  const Grid grid = grid_of_parts(parts, mesh, placements);
  check_parts_fit(parts, grid, placements);
  return grid;
}

/// The grid of which this rank's part is `local`, given the piece sizes along every dim that is
/// cut.
Grid grid_around(const Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                 const std::vector<Partition>& partitions) {
  Shape shape(local.sizes());
  for (size_t i = 0; i < placements.size() && i < partitions.size(); ++i) {
    if (!placements[i].is_shard()) continue;
    const int64_t dim =
        placements[i].dim() < 0 ? placements[i].dim() + local.dim() : placements[i].dim();
    if (dim < 0 || dim >= local.dim() || partitions[i].empty()) continue;
    shape[static_cast<size_t>(dim)] =
        offset_of(partitions[i], static_cast<int64_t>(partitions[i].size()));
  }
  return Grid::make(mesh, placements, shape, partitions);
}

/// from_local without checks across ranks, differentiable through all levels.
Tensor wrapped(const Tensor& local, const Grid& grid) {
  Tensor result = local;
  for (const Level& level : grid.levels()) {
    result = from_local(result, level.mesh, level.spec);
  }
  return result;
}

void check_defined(const char* where, const Tensor& tensor) {
  check<SpecMismatch>(tensor.defined() && !impl_of(tensor), where, "got ",
                      tensor.defined() ? "a ShardTensor" : "an undefined tensor",
                      "; expected a plain tensor.");
}

/// A new local part of `grid` in the memory order of a tensor with `strides`, wrapped.
Tensor empty_in_order(const Grid& grid, const Shape& strides, at::TensorOptions options) {
  const Shape sizes = grid.box(grid.mesh.rank()).size;
  Tensor result = wrap(at::empty_strided(sizes, strides_in_order(sizes, strides), options), grid);
  set_order(result, strides);
  return result;
}

std::vector<Tensor> pieces_on_source(const Tensor& tensor, const Grid& grid) {
  std::vector<Tensor> pieces;
  for (int64_t rank = 0; rank < grid.mesh.size(); ++rank) {
    const Box box = grid.box(rank);
    Tensor piece = tensor;
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      const auto i = static_cast<size_t>(d);
      piece = piece.narrow(d, box.begin[i], box.size[i]);
    }
    pieces.push_back(piece.to(grid.mesh.device()));
  }
  return pieces;
}

}  // namespace

ShardTensor::ShardTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {
  check<SpecMismatch>(
      impl_of(tensor_) != nullptr, "ShardTensor", "got ",
      tensor_.defined() ? "a plain tensor" : "an undefined tensor",
      "; expected a sharded tensor. Make one with shard::scatter_tensor or shard::from_local.");
}

const ShardTensorSpec& ShardTensor::spec() const { return *spec_of(tensor_); }
const SpecRef& ShardTensor::spec_ref() const { return spec_of(tensor_); }
DeviceMesh ShardTensor::mesh() const { return mesh_of(tensor_).root(); }
Placements ShardTensor::placements() const { return Grid::of(tensor_).placements(); }

Partition ShardTensor::partition(int64_t dim) const {
  const int64_t wanted = c10::maybe_wrap_dim(dim, tensor_.dim());
  for (const auto& cut : Grid::of(tensor_).cuts) {
    if (cut.placement.is_shard(wanted)) return cut.partition;
  }
  return {tensor_.size(wanted)};
}

Tensor ShardTensor::local(std::optional<Placement> gradient) const {
  Tensor result = tensor_;
  while (impl_of(result)) result = to_local(result, gradient);
  return result;
}

Tensor ShardTensor::full() const {
  Tensor x = tensor_;
  const auto& impl = *impl_of(x);
  if (impl_of(impl.local())) {  // inner levels first: they may lie differently at other places
    if (impl.spec()->is_partial()) x = shard::redistribute(x, spec().replicated());
    x = from_local(ShardTensor(to_local(x)).full(), mesh_of(x), spec_of(x));
  }
  return to_local(shard::redistribute(x, spec_of(x)->replicated()));
}

ShardTensor ShardTensor::redistribute(const Placements& placements, Partition partition) const {
  if (mesh().ndim() > 1) {
    return redistribute(placements, partition_of_the_shard(placements, std::move(partition)));
  }
  check<SpecMismatch>(placements.size() == 1, "redistribute", "got ", placements.size(),
                      " placements; expected one, for the only dim of the mesh ", mesh().layout(),
                      ".");
  Placement placement = placements[0];
  if (placement.is_shard() && placement.dim() < 0)
    placement = Shard(placement.dim() + tensor_.dim());
  if (partition.empty() && placement == spec().placement()) partition = spec().partition();
  return ShardTensor(
      shard::redistribute(tensor_, spec().with(placement, tensor_.sizes(), std::move(partition))));
}

ShardTensor ShardTensor::redistribute(const Placements& placements,
                                      const std::vector<Partition>& partitions) const {
  const Grid now = Grid::of(tensor_);
  Grid target = Grid::make(now.mesh, placements, tensor_.sizes(), partitions);
  if (partitions.empty()) {  // dims that stay cut keep their pieces
    for (auto& cut : target.cuts) {
      for (const auto& own : now.cuts) {
        if (own.placement == cut.placement && own.mesh_dims == cut.mesh_dims) {
          cut.partition = own.partition;
        }
      }
    }
  }
  return ShardTensor(shard::redistribute(tensor_, target));
}

std::ostream& operator<<(std::ostream& out, const ShardTensor& tensor) {
  const at::NoGradGuard guard;
  const Grid grid = Grid::of(tensor.tensor());
  out << "ShardTensor " << tensor.tensor().scalar_type() << ", ";
  if (grid.mesh.ndim() == 1) {
    out << tensor.spec();
  } else {
    out << grid.placements() << " of " << c10::IntArrayRef(grid.shape);
    for (const auto& cut : grid.cuts) {
      if (cut.placement.is_shard()) {
        out << ", tensor dim " << cut.placement.dim() << " in pieces "
            << c10::IntArrayRef(cut.partition);
      }
    }
    out << " over " << grid.mesh.layout();
  }
  out << "; local part of rank " << grid.mesh.rank() << ":\n";
  return at::print(out, innermost(tensor.tensor()), 80);
}

Tensor scatter_tensor(const Tensor& tensor, int source, const DeviceMesh& mesh,
                      const Placements& placements, Partition partition) {
  return scatter_tensor(tensor, source, mesh, placements,
                        partition_of_the_shard(placements, std::move(partition)));
}

Tensor scatter_tensor(const Tensor& tensor, int source, const DeviceMesh& mesh,
                      const Placements& placements, const std::vector<Partition>& partitions) {
  check<ConfigError>(source >= 0 && source < mesh.size(), "scatter_tensor", "got source ", source,
                     "; expected a rank of the mesh in [0, ", mesh.size(), ").");
  for (const auto& placement : placements) {
    check<SpecMismatch>(!placement.is_partial(), "scatter_tensor", "got ", placement,
                        "; expected Shard or Replicate.");
  }
  const bool is_source = mesh.rank() == source;
  const auto said =
      mesh.comm().all_gather_bytes(is_source ? encode(tensor) : std::string("undefined"));
  const auto description = decode(said[static_cast<size_t>(source)]);
  check<SpecMismatch>(description.defined(), "scatter_tensor", "rank ", source,
                      " passed an undefined tensor; expected the tensor to cut.");
  const Grid grid = Grid::make(mesh, placements, description.sizes, partitions);
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Tensor result = empty_in_order(
      grid, description.strides, at::TensorOptions(scalar_type(description)).device(mesh.device()));
  Tensor local = innermost(result);
  mesh.comm().scatter_v(is_source ? pieces_on_source(tensor, grid) : std::vector<Tensor>{}, local,
                        source);
  return result;
}

Tensor from_local(const Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                  std::optional<Partition> partition) {
  if (partition) {
    return from_local(local, mesh, placements,
                      partition_of_the_shard(placements, *std::move(partition)));
  }
  // An undefined or wrong tensor on one rank must be every rank's error: agree first.
  const Tensor described = local.defined() && impl_of(local) ? Tensor() : local;
  return wrapped(local, agree_on_grid(described, mesh, placements));
}

Tensor from_local(const Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                  const std::vector<Partition>& partitions) {
  check_defined("from_local", local);
  return wrapped(local, grid_around(local, mesh, placements, partitions));
}

Tensor empty(c10::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
             at::TensorOptions options, Partition partition) {
  return empty(shape, mesh, placements, options,
               partition_of_the_shard(placements, std::move(partition)));
}

Tensor empty(c10::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
             at::TensorOptions options, const std::vector<Partition>& partitions) {
  const Grid grid = Grid::make(mesh, placements, shape, partitions);
  Tensor local = at::empty(grid.box(mesh.rank()).size,
                           options.device(mesh.device()).requires_grad(std::nullopt));
  Tensor result = wrap(local, grid);
  return result.set_requires_grad(options.requires_grad());
}

Tensor zeros(c10::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
             at::TensorOptions options, Partition partition) {
  Tensor result = empty(shape, mesh, placements, options, std::move(partition));
  innermost(result).zero_();
  return result;
}

}  // namespace shard
