// SPDX-License-Identifier: Apache-2.0
#include <shard/error.h>
#include <shard/parameters.h>
#include <shard/tensor.h>
#include <torch/nn/module.h>

namespace shard {

void broadcast_tensors(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh, int source) {
  check<ConfigError>(source >= 0 && source < mesh.size(), "broadcast", "got source ", source,
                     "; expected a rank of the mesh in [0, ", mesh.size(), ").");
  const at::NoGradGuard guard;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || is_shard_tensor(tensor)) continue;
    at::Tensor data = tensor.detach();
    mesh.comm().broadcast(data, source);
    if (mesh.size() > 1 && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void broadcast_parameters(torch::nn::Module& module, const DeviceMesh& mesh, int source) {
  broadcast_tensors(module.parameters(), mesh, source);
  broadcast_tensors(module.buffers(), mesh, source);
}

}  // namespace shard
