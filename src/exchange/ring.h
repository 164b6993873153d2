// SPDX-License-Identifier: Apache-2.0
// Blocks that travel around the ranks of a mesh: after every step each rank holds the block that
// the rank before it held.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/mesh.h>

#include <vector>

namespace shard {

class Ring {
 public:
  explicit Ring(const DeviceMesh& mesh) : mesh_(mesh) {}

  int64_t size() const { return mesh_.size(); }
  /// Whose block this rank holds after `step` steps.
  int64_t owner(int64_t step) const { return (mesh_.rank() - step % size() + size()) % size(); }
  /// One step: sends `held` to the next rank and receives `next` (overwritten) from the previous
  /// one, in one exchange. Collective.
  void pass(const std::vector<at::Tensor>& held, const std::vector<at::Tensor>& next) const;

 private:
  DeviceMesh mesh_;
};

}  // namespace shard
