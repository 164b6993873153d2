// SPDX-License-Identifier: Apache-2.0
#include <shard/launch.h>

namespace shard {

World::World(Communicator comm, Launcher launcher, c10::Device device)
    : comm_(std::move(comm)), launcher_(launcher), device_(device) {}

DeviceMesh World::mesh(std::vector<MeshDim> dims) const {
  return {comm_, std::move(dims), device_};
}

}  // namespace shard
