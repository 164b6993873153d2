// SPDX-License-Identifier: Apache-2.0
#include "comm/copy.h"
#include "comm/messages/message_communicator.h"
#include "comm/messages/message_round.h"
#include "comm/texts.h"

namespace shard {

void MessageCommunicator::all_gather_v(const at::Tensor& piece,
                                       const std::vector<at::Tensor>& outputs) {
  check_cpu(CommKind::AllGatherV, piece);
  const auto fingerprint = start(CommKind::AllGatherV).with_dtype(piece.scalar_type());
  MessageRound round(*transport_, operation_, fingerprint);
  const at::Tensor dense = packed(piece);
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank_ + i) % size();
    round.send(peer, dense);
    round.receive(peer, outputs[static_cast<size_t>(peer)]);
  }
  bytes_sent_ += round.run();
  copy_own(outputs[static_cast<size_t>(rank_)], piece);
}

void MessageCommunicator::all_to_all_v(const std::vector<at::Tensor>& sends,
                                       const std::vector<at::Tensor>& receives) {
  const auto fingerprint = start(CommKind::AllToAllV);
  MessageRound round(*transport_, operation_, fingerprint);
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank_ + i) % size();
    round.send(peer, sends[static_cast<size_t>(peer)]);
    round.receive(peer, receives[static_cast<size_t>(peer)]);
  }
  bytes_sent_ += round.run();
  copy_own(receives[static_cast<size_t>(rank_)], sends[static_cast<size_t>(rank_)]);
}

void MessageCommunicator::broadcast(at::Tensor& tensor, int root) {
  check_cpu(CommKind::Broadcast, tensor);
  const auto fingerprint = start(CommKind::Broadcast).with_tensor(tensor).with_root(root);
  MessageRound round(*transport_, operation_, fingerprint);
  if (rank_ == root) {
    const at::Tensor dense = packed(tensor);
    for (int i = 1; i < size(); ++i) round.send((rank_ + i) % size(), dense);
  } else {
    round.receive(root, tensor);
  }
  bytes_sent_ += round.run();
}

void MessageCommunicator::scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output,
                                    int root) {
  check_cpu(CommKind::ScatterV, output);
  const auto fingerprint =
      start(CommKind::ScatterV).with_dtype(output.scalar_type()).with_root(root);
  MessageRound round(*transport_, operation_, fingerprint);
  if (rank_ == root) {
    for (int i = 1; i < size(); ++i) {
      const int peer = (rank_ + i) % size();
      round.send(peer, pieces[static_cast<size_t>(peer)]);
    }
  } else {
    round.receive(root, output);
  }
  bytes_sent_ += round.run();
  if (rank_ == root) copy_own(output, pieces[static_cast<size_t>(rank_)]);
}

void MessageCommunicator::exchange(const std::vector<Message>& sends,
                                   const std::vector<Message>& receives) {
  const auto fingerprint = start(CommKind::Exchange);
  MessageRound round(*transport_, operation_, fingerprint);
  std::vector<at::Tensor> own_sends;
  std::vector<at::Tensor> own_receives;
  for (const auto& [peer, tensor] : sends) {
    check_cpu(CommKind::Exchange, tensor);
    if (peer == rank_) own_sends.push_back(tensor);
    if (peer != rank_) round.send(peer, tensor);
  }
  for (const auto& [peer, tensor] : receives) {
    check_cpu(CommKind::Exchange, tensor);
    if (peer == rank_) own_receives.push_back(tensor);
    if (peer != rank_) round.receive(peer, tensor);
  }
  if (own_sends.size() != own_receives.size()) {
    mismatch(lost_message_text(operation_.number, transport_->rank(), own_receives.size(),
                               transport_->rank(), own_sends.size(), "the same exchange"));
  }
  bytes_sent_ += round.run();
  for (size_t i = 0; i < own_sends.size(); ++i) copy_own(own_receives[i], own_sends[i]);
}

}  // namespace shard
