// SPDX-License-Identifier: Apache-2.0
// DeviceMesh: an n-d grid of ranks with named dims. MeshLayout is the rank-free part (shared by all
// thread ranks, compared by value); DeviceMesh is one rank's handle: its coordinate and one
// communicator per dim.
#pragma once

#include <c10/core/Device.h>
#include <shard/communicator.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shard {

struct MeshDim {
  std::string name;
  int64_t size = 1;  ///< -1: whatever is left (one dim at most)
};

/// Names, shape and the world ranks (row-major) of a mesh. Immutable.
struct MeshLayout {
  std::vector<MeshDim> dims;
  std::vector<int> world_ranks;

  int64_t ndim() const { return static_cast<int64_t>(dims.size()); }
  int64_t numel() const { return static_cast<int64_t>(world_ranks.size()); }
  int64_t dim_index(const std::string& name) const;  ///< ConfigError names the dims there are
  bool operator==(const MeshLayout& other) const;
};
std::ostream& operator<<(std::ostream& out, const MeshLayout& layout);

/// One rank's view of a mesh. A cheap handle; copying shares it. Equal layouts are interchangeable.
class DeviceMesh {
 public:
  DeviceMesh() = default;
  /// Collective over `world`: every rank passes the same dims. The sizes must multiply to
  /// `world.size()` (ConfigError otherwise).
  DeviceMesh(const Communicator& world, std::vector<MeshDim> dims, c10::Device device);

  bool defined() const { return state_ != nullptr; }
  int64_t ndim() const { return layout().ndim(); }
  int64_t size() const { return layout().numel(); }
  int64_t size(const std::string& dim) const;
  int64_t size(int64_t dim) const;
  /// This rank's coordinate along `dim`.
  int64_t coordinate(const std::string& dim) const;
  int64_t coordinate(int64_t dim) const;
  /// The communicator of the ranks that differ from this one along `dim` only.
  const Communicator& comm(const std::string& dim) const;
  const Communicator& comm(int64_t dim) const;
  /// The communicator of all ranks of the mesh (row-major: the last dim varies fastest), and this
  /// rank's place in it.
  const Communicator& comm() const;
  int64_t rank() const { return comm().rank(); }
  /// The 1-d sub-mesh along `dim` that this rank belongs to. No communication.
  DeviceMesh operator[](const std::string& dim) const;
  /// The 1-d mesh over `dims` (ascending), the first of them varying slowest: all ranks that differ
  /// from this one along these dims only. It belongs to this mesh: root() gives it back. No
  /// communication.
  DeviceMesh flattened(const std::vector<int64_t>& dims) const;
  /// The mesh that this one was flattened from, else this one; and which of its dims these are.
  DeviceMesh root() const;
  const std::vector<int64_t>& root_dims() const;

  const MeshLayout& layout() const;
  const std::shared_ptr<const MeshLayout>& layout_ref() const;
  c10::Device device() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace shard
