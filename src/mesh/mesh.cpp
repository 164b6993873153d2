// SPDX-License-Identifier: Apache-2.0
#include <shard/error.h>
#include <shard/mesh.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "mesh/layout.h"

namespace shard {

struct DeviceMesh::State {
  std::shared_ptr<const MeshLayout> layout;
  std::vector<int64_t> coordinates;  ///< of this rank, one a dim
  c10::Device device;
  std::map<std::vector<int64_t>, Communicator> comms;  ///< of every set of dims, ascending
  DeviceMesh root = {};                                ///< undefined: the mesh itself
  std::vector<int64_t> root_dims = {};                 ///< all, of a root

  const Communicator& comm(const std::vector<int64_t>& dims) const { return comms.at(dims); }
};

namespace {

std::vector<int64_t> coordinates_of(const std::vector<MeshDim>& dims, int64_t rank) {
  std::vector<int64_t> coordinates(dims.size());
  for (size_t d = dims.size(); d-- > 0;) {
    coordinates[d] = rank % dims[d].size;
    rank /= dims[d].size;
  }
  return coordinates;
}

int64_t rank_at(const std::vector<MeshDim>& dims, const std::vector<int64_t>& coordinates) {
  int64_t rank = 0;
  for (size_t d = 0; d < dims.size(); ++d) rank = rank * dims[d].size + coordinates[d];
  return rank;
}

using Dims = std::vector<int64_t>;

/// The ranks that differ from `coordinates` along `dims` only. The first of them is the same on all
/// of them, and a different one elsewhere: their color.
std::vector<int> ranks_along(const std::vector<MeshDim>& dims, std::vector<int64_t> coordinates,
                             const Dims& along) {
  std::vector<MeshDim> sizes;
  for (const int64_t d : along) sizes.push_back(dims[static_cast<size_t>(d)]);
  int64_t count = 1;
  for (const MeshDim& dim : sizes) count *= dim.size;
  std::vector<int> ranks;
  for (int64_t i = 0; i < count; ++i) {
    const auto place = coordinates_of(sizes, i);
    for (size_t k = 0; k < along.size(); ++k) coordinates[static_cast<size_t>(along[k])] = place[k];
    ranks.push_back(static_cast<int>(rank_at(dims, coordinates)));
  }
  return ranks;
}

/// Every non-empty set of `n` dims, ascending, single dims first.
std::vector<Dims> sets_of_dims(size_t n) {
  std::vector<Dims> sets;
  for (size_t mask = 1; mask < size_t{1} << n; ++mask) {
    Dims dims;
    for (size_t d = 0; d < n; ++d) {
      if (mask >> d & 1) dims.push_back(static_cast<int64_t>(d));
    }
    sets.push_back(std::move(dims));
  }
  std::stable_sort(sets.begin(), sets.end(),
                   [](const Dims& a, const Dims& b) { return a.size() < b.size(); });
  return sets;
}

std::string joined_names(const std::vector<MeshDim>& dims, const Dims& along) {
  std::string text;
  for (const int64_t d : along) {
    text += (text.empty() ? "" : "*") + dims[static_cast<size_t>(d)].name;
  }
  return text;
}

void check_agreement(const Communicator& world, const MeshLayout& layout) {
  std::ostringstream text;
  text << layout;
  const auto all = world.all_gather_bytes(text.str());
  for (size_t r = 0; r < all.size(); ++r) {
    check<ConfigError>(all[r] == all[0], "mesh", "shape: got ", all[r], " on rank ", r,
                       "; expected ", all[0], ", that of rank 0. Pass the same dims everywhere.");
  }
}

}  // namespace

DeviceMesh::DeviceMesh(const Communicator& world, std::vector<MeshDim> dims, c10::Device device) {
  MeshLayout layout{resolve_dims(std::move(dims), world.size()), {}};
  for (int r = 0; r < world.size(); ++r) layout.world_ranks.push_back(r);
  check_agreement(world, layout);
  State state{intern(layout), coordinates_of(layout.dims, world.rank()), device, {}};
  const auto sets = sets_of_dims(layout.dims.size());
  for (const Dims& along : sets) {
    const auto ranks = ranks_along(layout.dims, state.coordinates, along);
    const auto me = std::find(ranks.begin(), ranks.end(), world.rank()) - ranks.begin();
    state.comms[along] =
        world.split(ranks[0], static_cast<int>(me), joined_names(layout.dims, along));
  }
  state.root_dims = sets.back();
  state_ = std::make_shared<const State>(std::move(state));
}

int64_t DeviceMesh::size(const std::string& dim) const { return size(layout().dim_index(dim)); }
int64_t DeviceMesh::coordinate(const std::string& dim) const {
  return coordinate(layout().dim_index(dim));
}
const Communicator& DeviceMesh::comm(const std::string& dim) const {
  return comm(layout().dim_index(dim));
}

int64_t DeviceMesh::size(int64_t dim) const {
  return layout().dims.at(static_cast<size_t>(dim)).size;
}
int64_t DeviceMesh::coordinate(int64_t dim) const {
  return state_->coordinates.at(static_cast<size_t>(dim));
}
const Communicator& DeviceMesh::comm(int64_t dim) const { return state_->comm({dim}); }
const Communicator& DeviceMesh::comm() const {
  return ndim() == 1 ? state_->comms.begin()->second : state_->comm(state_->root_dims);
}

DeviceMesh DeviceMesh::flattened(const std::vector<int64_t>& dims) const {
  if (ndim() == 1) return *this;
  const auto ranks = ranks_along(layout().dims, state_->coordinates, dims);
  const auto& comm = state_->comm(dims);
  MeshLayout flat{{{joined_names(layout().dims, dims), static_cast<int64_t>(ranks.size())}}, ranks};
  DeviceMesh mesh;
  mesh.state_ = std::make_shared<const State>(
      State{intern(std::move(flat)), {comm.rank()}, device(), {{{0}, comm}}, *this, dims});
  return mesh;
}

DeviceMesh DeviceMesh::operator[](const std::string& dim) const {
  const int64_t index = layout().dim_index(dim);
  if (ndim() == 1) return *this;
  State state = *flattened({index}).state_;
  state.root = {};
  state.root_dims = {0};
  DeviceMesh mesh;
  mesh.state_ = std::make_shared<const State>(std::move(state));
  return mesh;
}

DeviceMesh DeviceMesh::root() const { return state_->root.defined() ? state_->root : *this; }
const std::vector<int64_t>& DeviceMesh::root_dims() const { return state_->root_dims; }

const MeshLayout& DeviceMesh::layout() const { return *state_->layout; }
const std::shared_ptr<const MeshLayout>& DeviceMesh::layout_ref() const { return state_->layout; }
c10::Device DeviceMesh::device() const { return state_->device; }

}  // namespace shard
