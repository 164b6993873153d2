// SPDX-License-Identifier: Apache-2.0
// exchange: ranks wait only for those they have messages with. What a mailbox holds is certain once
// both sides have looked: the receiver that the sender has posted in this operation, the sender
// that the receiver has taken it in this operation. So a message that only one side knows of is
// found by that side.
#include <algorithm>

#include "comm/texts.h"
#include "comm/threads/thread_communicator.h"

namespace shard {

void ThreadCommunicator::exchange(const std::vector<Message>& sends,
                                  const std::vector<Message>& receives) {
  start(CommKind::Exchange);
  post(sends);
  group_->gate().publish(rank_, 1);
  collect(receives);
  group_->gate().publish(rank_, 1);
  await_taken(sends);
}

void ThreadCommunicator::post(const std::vector<Message>& sends) {
  for (const Message& message : sends) {
    Mailbox& box = group_->mailbox(rank_, message.peer);
    box.tensors.push_back(message.tensor);  // NOTE [Slots own their tensors]
    box.posted.store(sequence_, std::memory_order_release);
  }
}

void ThreadCommunicator::collect(const std::vector<Message>& receives) {
  taken_.assign(static_cast<size_t>(size()), 0);
  for (const Message& message : receives) {  // first what need not wait
    if (message.peer == rank_) take(message);
  }
  for (const Message& message : receives) {
    if (message.peer != rank_) take(message);
  }
  for (const int peer : peers_of(receives)) {
    Mailbox& box = group_->mailbox(peer, rank_);
    const size_t expected = taken_[static_cast<size_t>(peer)];
    if (expected != box.tensors.size()) {
      mismatch(lost_message_text(sequence_, group_->world_rank(rank_), expected,
                                 group_->world_rank(peer), box.tensors.size(), activity_of(peer)));
    }
    box.taken.store(sequence_, std::memory_order_release);
  }
}

void ThreadCommunicator::take(const Message& message) {
  const int peer = message.peer;
  if (peer != rank_) wait_for(peer, begun());
  Mailbox& box = group_->mailbox(peer, rank_);
  const bool is_posted = box.posted.load(std::memory_order_acquire) == sequence_;
  size_t& next = taken_[static_cast<size_t>(peer)];
  if (!is_posted || next == box.tensors.size()) {
    mismatch(lost_message_text(sequence_, group_->world_rank(rank_), next + 1,
                               group_->world_rank(peer), next, activity_of(peer)));
  }
  receive(message.tensor, box.tensors[next++], peer);
}

void ThreadCommunicator::await_taken(const std::vector<Message>& sends) {
  for (const int peer : peers_of(sends)) {
    if (peer != rank_) wait_for(peer, ended());
    Mailbox& box = group_->mailbox(rank_, peer);
    if (box.taken.load(std::memory_order_acquire) < sequence_) {
      mismatch(lost_message_text(sequence_, group_->world_rank(peer), 0, group_->world_rank(rank_),
                                 box.tensors.size(), activity_of(peer)));
    }
    box.tensors.clear();
  }
}

ThreadCommunicator::Peers ThreadCommunicator::peers_of(const std::vector<Message>& messages) {
  Peers peers;
  for (const Message& message : messages) {
    if (std::find(peers.begin(), peers.end(), message.peer) == peers.end()) {
      peers.push_back(message.peer);
    }
  }
  return peers;
}

}  // namespace shard
