// SPDX-License-Identifier: Apache-2.0
// The communicator of ranks that have a GPU each. Tensors travel by NCCL on the current stream, so
// that nothing waits for the device; what is not a tensor goes over the host's communicator. With
// SHARD_CHECK_NCCL=1 so do fingerprints, ahead of every operation.
#pragma once

#include <c10/core/Device.h>
#include <nccl.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/cuda/nccl_watch.h"
#include "comm/fingerprint.h"
#include "comm/host_backend.h"

namespace shard {

class NcclCommunicator final : public HostBackend {
 public:
  /// Collective over `host`; every rank with another device.
  NcclCommunicator(std::shared_ptr<CommunicatorBackend> host, c10::Device device);
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  const char* backend_name() const override { return "nccl"; }

  void all_reduce(at::Tensor& tensor, ReduceOp op) override;
  void all_gather_v(const at::Tensor& piece, const std::vector<at::Tensor>& outputs) override;
  void reduce_scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output,
                        ReduceOp op) override;
  void all_to_all_v(const std::vector<at::Tensor>& sends,
                    const std::vector<at::Tensor>& receives) override;
  void broadcast(at::Tensor& tensor, int root) override;
  void scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output, int root) override;
  void exchange(const std::vector<Message>& sends, const std::vector<Message>& receives) override;
  std::shared_ptr<CommunicatorBackend> split(int color, int key) override;
  int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  Fingerprint start(CommKind kind);
  /// Compares what the ranks are about to do, when asked to.
  void agree(const Fingerprint& fingerprint);
  /// Sends and receives in one group; the caller's own parts are copied.
  void move(const std::vector<Message>& sends, const std::vector<Message>& receives,
            const Fingerprint& fingerprint);
  void check_device(const at::Tensor& tensor, CommKind kind) const;
  /// Waits until NCCL has accepted what was given to it.
  void settle(const char* call);

  c10::Device device_;
  ncclComm_t comm_ = nullptr;
  std::unique_ptr<NcclWatch> watch_;
  uint64_t sequence_ = 0;
  int64_t bytes_sent_ = 0;
};

}  // namespace shard
