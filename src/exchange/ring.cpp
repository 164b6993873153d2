// SPDX-License-Identifier: Apache-2.0
#include "exchange/ring.h"

namespace shard {

void Cargo::add(std::vector<Message>& messages, int64_t peer, const at::Tensor& tensor) {
  if (tensor.numel() > 0) messages.push_back({static_cast<int>(peer), tensor});
}

Pending<std::vector<at::Tensor>> Cargo::start(const DeviceMesh& mesh, bool overlaps) && {
  if (!overlaps) {
    mesh.comm().exchange(sends_, receives_);
    return Pending<std::vector<at::Tensor>>([] { return std::vector<at::Tensor>(); });
  }
  return mesh.comm().start_exchange(std::move(sends_), std::move(receives_));
}

}  // namespace shard
