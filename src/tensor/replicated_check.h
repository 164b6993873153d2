// SPDX-License-Identifier: Apache-2.0
// SHARD_CHECK_REPLICATED: plain tensors that count as Replicate must be the same on every rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/mesh.h>
#include <shard/modes.h>

namespace shard {

/// Collective over `mesh`. Errors: SpecMismatch, on every rank, naming the op, the sizes and the
/// first rank whose bits differ from rank 0's.
void compare_replicated(const at::Tensor& plain, const DeviceMesh& mesh);

inline void check_replicated(const at::Tensor& plain, const DeviceMesh& mesh) {
  if (checks_replicated() && mesh.size() > 1) [[unlikely]]
    compare_replicated(plain, mesh);
}

}  // namespace shard
