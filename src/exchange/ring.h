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
  /// Who holds this rank's block then.
  int64_t holder(int64_t step) const { return (mesh_.rank() + step) % size(); }

 private:
  DeviceMesh mesh_;
};

/// Tensors that travel in one exchange; those without elements stay.
class Cargo {
 public:
  void send(int64_t to, const at::Tensor& tensor) { add(sends_, to, tensor); }
  void receive(int64_t from, const at::Tensor& tensor) { add(receives_, from, tensor); }
  /// Collective. Use what travels only after the wait(). `overlaps`, alike on all ranks: it
  /// travels meanwhile; else at once.
  Pending<std::vector<at::Tensor>> start(const DeviceMesh& mesh, bool overlaps) &&;

 private:
  static void add(std::vector<Message>& messages, int64_t peer, const at::Tensor& tensor);
  std::vector<Message> sends_, receives_;
};

}  // namespace shard
