// SPDX-License-Identifier: Apache-2.0
// MpiPhase: one round of messages of an operation, given as tensors. Packs what is not contiguous,
// unpacks what was received, and keeps everything alive: also after a failure, when MPI may still
// use the memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/mpi/mpi_transfer.h"

namespace shard {

class MpiPhase {
 public:
  MpiPhase(MpiWorld& world, const MpiOperation& operation, const Fingerprint& fingerprint,
           const std::vector<int>& world_ranks);
  MpiPhase(const MpiPhase&) = delete;
  MpiPhase& operator=(const MpiPhase&) = delete;
  /// Buries its memory unless run() has come to its end.
  ~MpiPhase();

  void send(int rank, const at::Tensor& tensor);
  void receive(int rank, const at::Tensor& tensor);
  void send_bytes(int rank, const void* data, int64_t bytes);
  void receive_bytes(int rank, void* data, int64_t bytes);
  /// Memory that the bytes above lie in.
  void keep(std::shared_ptr<void> memory) { memory_->kept.push_back(std::move(memory)); }
  /// Returns the payload bytes sent.
  int64_t run();

 private:
  struct Memory {
    explicit Memory(MpiTransfer new_transfer) : transfer(std::move(new_transfer)) {}
    MpiTransfer transfer;
    std::vector<at::Tensor> tensors;
    std::vector<std::shared_ptr<void>> kept;
  };
  struct Unpack {
    at::Tensor to, from;
  };
  void send_piece(const MpiPiece& piece);

  MpiWorld& world_;
  const std::vector<int>& world_ranks_;
  std::shared_ptr<Memory> memory_;
  std::vector<Unpack> unpacks_;
  int64_t bytes_ = 0;
  bool is_done_ = false;
};

}  // namespace shard
