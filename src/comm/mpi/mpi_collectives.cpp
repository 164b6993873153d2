// SPDX-License-Identifier: Apache-2.0
#include "comm/copy.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/mpi/mpi_phase.h"
#include "comm/texts.h"

namespace shard {

void MpiCommunicator::all_gather_v(const at::Tensor& piece,
                                   const std::vector<at::Tensor>& outputs) {
  check_cpu(CommKind::AllGatherV, piece);
  const auto fingerprint = start(CommKind::AllGatherV).with_dtype(piece.scalar_type());
  MpiPhase phase(*world_, operation_, fingerprint, world_ranks_);
  const at::Tensor dense = packed(piece);
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank_ + i) % size();
    phase.send(peer, dense);
    phase.receive(peer, outputs[static_cast<size_t>(peer)]);
  }
  bytes_sent_ += phase.run();
  copy_own(outputs[static_cast<size_t>(rank_)], piece);
}

void MpiCommunicator::all_to_all_v(const std::vector<at::Tensor>& sends,
                                   const std::vector<at::Tensor>& receives) {
  const auto fingerprint = start(CommKind::AllToAllV);
  MpiPhase phase(*world_, operation_, fingerprint, world_ranks_);
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank_ + i) % size();
    phase.send(peer, sends[static_cast<size_t>(peer)]);
    phase.receive(peer, receives[static_cast<size_t>(peer)]);
  }
  bytes_sent_ += phase.run();
  copy_own(receives[static_cast<size_t>(rank_)], sends[static_cast<size_t>(rank_)]);
}

void MpiCommunicator::broadcast(at::Tensor& tensor, int root) {
  check_cpu(CommKind::Broadcast, tensor);
  const auto fingerprint = start(CommKind::Broadcast).with_tensor(tensor).with_root(root);
  MpiPhase phase(*world_, operation_, fingerprint, world_ranks_);
  if (rank_ == root) {
    const at::Tensor dense = packed(tensor);
    for (int i = 1; i < size(); ++i) phase.send((rank_ + i) % size(), dense);
  } else {
    phase.receive(root, tensor);
  }
  bytes_sent_ += phase.run();
}

void MpiCommunicator::scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output,
                                int root) {
  check_cpu(CommKind::ScatterV, output);
  const auto fingerprint =
      start(CommKind::ScatterV).with_dtype(output.scalar_type()).with_root(root);
  MpiPhase phase(*world_, operation_, fingerprint, world_ranks_);
  if (rank_ == root) {
    for (int i = 1; i < size(); ++i) {
      const int peer = (rank_ + i) % size();
      phase.send(peer, pieces[static_cast<size_t>(peer)]);
    }
  } else {
    phase.receive(root, output);
  }
  bytes_sent_ += phase.run();
  if (rank_ == root) copy_own(output, pieces[static_cast<size_t>(rank_)]);
}

void MpiCommunicator::exchange(const std::vector<Message>& sends,
                               const std::vector<Message>& receives) {
  const auto fingerprint = start(CommKind::Exchange);
  MpiPhase phase(*world_, operation_, fingerprint, world_ranks_);
  std::vector<at::Tensor> own_sends;
  std::vector<at::Tensor> own_receives;
  for (const auto& [peer, tensor] : sends) {
    check_cpu(CommKind::Exchange, tensor);
    if (peer == rank_) own_sends.push_back(tensor);
    if (peer != rank_) phase.send(peer, tensor);
  }
  for (const auto& [peer, tensor] : receives) {
    check_cpu(CommKind::Exchange, tensor);
    if (peer == rank_) own_receives.push_back(tensor);
    if (peer != rank_) phase.receive(peer, tensor);
  }
  if (own_sends.size() != own_receives.size()) {
    mismatch(lost_message_text(operation_.number, world_->rank(), own_receives.size(),
                               world_->rank(), own_sends.size(), "the same exchange"));
  }
  bytes_sent_ += phase.run();
  for (size_t i = 0; i < own_sends.size(); ++i) copy_own(own_receives[i], own_sends[i]);
}

}  // namespace shard
