// SPDX-License-Identifier: Apache-2.0
// StagedBackend: tensors of any device over a backend that moves CPU tensors. What is sent is
// copied to the CPU first, what is received is copied to its device afterwards. Slower than a
// transport of the device's own, and right wherever that one is missing: several processes on one
// GPU, machines without NCCL.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/host_backend.h"

namespace shard {

class StagedBackend final : public HostBackend {
 public:
  explicit StagedBackend(std::shared_ptr<CommunicatorBackend> host);

  const char* backend_name() const override { return name_.c_str(); }

  void all_reduce(at::Tensor& tensor, ReduceOp op) override;
  void all_gather_v(const at::Tensor& piece, const std::vector<at::Tensor>& outputs) override;
  void reduce_scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output,
                        ReduceOp op) override;
  void all_to_all_v(const std::vector<at::Tensor>& sends,
                    const std::vector<at::Tensor>& receives) override;
  void broadcast(at::Tensor& tensor, int root) override;
  void scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output, int root) override;
  void exchange(const std::vector<Message>& sends, const std::vector<Message>& receives) override;
  std::shared_ptr<CommunicatorBackend> split(int color, int key) override {
    return std::make_shared<StagedBackend>(host().split(color, key));
  }
  int64_t bytes_sent() const override { return host().bytes_sent(); }

 private:
  std::string name_;  ///< "mpi, staged"
};

}  // namespace shard
