// SPDX-License-Identifier: Apache-2.0
// The plain weights of a model over a mesh.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/mesh.h>

#include <vector>

namespace torch::nn {
class Module;
}

namespace shard {

/// Rank `source`'s parameters and buffers become every rank's, in place (their versions are bumped,
/// their graphs are not). Collective over `mesh`; every rank must hold the same structure
/// (CommMismatch otherwise).
void broadcast_parameters(torch::nn::Module& module, const DeviceMesh& mesh, int source = 0);
void broadcast_tensors(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                       int source = 0);

}  // namespace shard
