// SPDX-License-Identifier: Apache-2.0
// MessageRound: one round of messages of an operation, given as tensors. Packs what is not
// contiguous, unpacks what was received, and keeps everything alive: also after a failure, when the
// transport may still use the memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/messages/message_transport.h"

namespace shard {

class MessageRound {
 public:
  /// `operation.members`: world ranks in the communicator's order.
  MessageRound(MessageTransport& transport, const MessageOperation& operation,
               const Fingerprint& fingerprint);

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
    MessageRoundPlan plan;
    std::vector<at::Tensor> tensors;
    std::vector<std::shared_ptr<void>> kept;
  };
  struct Unpack {
    at::Tensor to, from;
  };
  void send_piece(const MessagePiece& piece);
  int world_rank(int rank) const { return operation_.members[static_cast<size_t>(rank)]; }

  MessageTransport& transport_;
  MessageOperation operation_;
  std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  std::vector<Unpack> unpacks_;
  int64_t bytes_ = 0;
};

}  // namespace shard
