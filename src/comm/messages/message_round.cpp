// SPDX-License-Identifier: Apache-2.0
#include "comm/messages/message_round.h"

#include <ATen/ops/empty.h>

#include "comm/copy.h"
#include "comm/volume.h"

namespace shard {
namespace {

Fingerprint::Words shape_of(const at::Tensor& tensor) {
  return Fingerprint(0, CommKind::None).with_tensor(tensor).words();
}

}  // namespace

MessageRound::MessageRound(MessageTransport& transport, const MessageOperation& operation,
                           const Fingerprint& fingerprint)
    : transport_(transport), operation_(operation) {
  memory_->plan.fingerprint = fingerprint;
}

void MessageRound::send_piece(const MessagePiece& piece) {
  memory_->plan.sends.push_back(piece);
  bytes_ += piece.bytes;
}

void MessageRound::send(int rank, const at::Tensor& tensor) {
  const at::Tensor& dense = memory_->tensors.emplace_back(packed(tensor));
  send_piece({world_rank(rank), const_cast<void*>(dense.const_data_ptr()), bytes_of(dense),
              shape_of(dense)});
}

void MessageRound::receive(int rank, const at::Tensor& tensor) {
  const bool is_direct = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  const at::Tensor landing = is_direct ? tensor : at::empty(tensor.sizes(), tensor.options());
  memory_->tensors.push_back(landing);
  memory_->plan.receives.push_back(
      {world_rank(rank), landing.mutable_data_ptr(), bytes_of(landing), shape_of(landing)});
  if (!is_direct) unpacks_.push_back({tensor, landing});
}

void MessageRound::send_bytes(int rank, const void* data, int64_t bytes) {
  send_piece({world_rank(rank), const_cast<void*>(data), bytes, {}});
}

void MessageRound::receive_bytes(int rank, void* data, int64_t bytes) {
  memory_->plan.receives.push_back({world_rank(rank), data, bytes, {}});
}

int64_t MessageRound::run() {
  transport_.move(operation_, memory_->plan, memory_);
  for (const Unpack& unpack : unpacks_) copy_plain(unpack.to, unpack.from);
  return bytes_;
}

}  // namespace shard
