// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/spec.h>

#include <vector>

namespace shard {

/// redistribute() of several tensors over one mesh, each to its target. Those that move from one
/// cut dim to another travel in one exchange, and so do their gradients. Collective over the mesh.
std::vector<at::Tensor> redistribute_together(const std::vector<at::Tensor>& tensors,
                                              const std::vector<SpecRef>& targets);

}  // namespace shard
