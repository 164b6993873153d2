// SPDX-License-Identifier: Apache-2.0
// What is not about moving tensors; that is in message_collectives.cpp and
// message_reductions.cpp.
#include "comm/messages/message_communicator.h"

#include <shard/error.h>

#include <algorithm>
#include <cstring>

#include "comm/copy.h"
#include "comm/messages/message_round.h"
#include "comm/texts.h"
#include "comm/volume.h"

namespace shard {

MessageCommunicator::MessageCommunicator(std::shared_ptr<MessageTransport> transport,
                                         std::vector<int> world_ranks, int tag, bool is_lane)
    : transport_(std::move(transport)), world_ranks_(std::move(world_ranks)) {
  operation_.tag = tag;
  operation_.is_of_helper = is_lane;
  operation_.members = world_ranks_;
  const auto me = std::find(world_ranks_.begin(), world_ranks_.end(), transport_->rank());
  rank_ = static_cast<int>(me - world_ranks_.begin());
}

Fingerprint MessageCommunicator::start(CommKind kind) {
  operation_.kind = kind;
  ++operation_.number;
  transport_->begin(operation_);
  return {operation_.number, kind};
}

// Dissemination: in round r everybody hears from the rank 2^r before it.
void MessageCommunicator::barrier() {
  const Fingerprint fingerprint = start(CommKind::Barrier);
  for (int step = 1; step < size(); step *= 2) {
    MessageRound round(*transport_, operation_, fingerprint);
    round.send_bytes((rank_ + step) % size(), nullptr, 0);
    round.receive_bytes((rank_ - step + size()) % size(), nullptr, 0);
    round.run();
  }
}

std::vector<std::string> MessageCommunicator::all_gather_bytes(const std::string& bytes) {
  auto all = gather_bytes(CommKind::AllGatherBytes, bytes);
  bytes_sent_ += all_gather_volume(static_cast<int64_t>(bytes.size()), size());
  return all;
}

// Lengths first, since receivers must know them; then the bytes.
std::vector<std::string> MessageCommunicator::gather_bytes(CommKind kind,
                                                           const std::string& bytes) {
  const auto fingerprint = start(kind);
  const auto count = static_cast<size_t>(size());
  const auto lengths = std::make_shared<std::vector<int64_t>>(count);
  const auto all = std::make_shared<std::vector<std::string>>(count);
  const auto own = static_cast<size_t>(rank_);
  (*lengths)[own] = static_cast<int64_t>(bytes.size());
  (*all)[own] = bytes;
  for (const bool is_length : {true, false}) {
    MessageRound round(*transport_, operation_, fingerprint);
    round.keep(lengths);
    round.keep(all);
    for (int i = 1; i < size(); ++i) {
      const int peer = (rank_ + i) % size();
      int64_t& length = (*lengths)[static_cast<size_t>(peer)];
      std::string& text = (*all)[static_cast<size_t>(peer)];
      if (is_length) {
        round.send_bytes(peer, &(*lengths)[own], sizeof(int64_t));
        round.receive_bytes(peer, &length, sizeof(int64_t));
      } else {
        text.resize(static_cast<size_t>(length));
        round.send_bytes(peer, (*all)[own].data(), (*lengths)[own]);
        round.receive_bytes(peer, text.data(), length);
      }
    }
    round.run();
  }
  return *all;
}

std::pair<std::vector<int>, int> MessageCommunicator::split_ranks(int color, int key) {
  // Color and key, and the tag that this rank could use next: the largest of them is free on every
  // rank.
  const int proposal = transport_->next_tag();
  std::string bytes = split_bytes(color, key);
  bytes.append(reinterpret_cast<const char*>(&proposal), sizeof proposal);
  const auto gathered = gather_bytes(CommKind::Split, bytes);
  int tag = proposal;
  for (const std::string& theirs : gathered) {
    int value = 0;
    std::memcpy(&value, theirs.data() + theirs.size() - sizeof value, sizeof value);
    tag = std::max(tag, value);
  }
  transport_->use_tag(tag);
  std::vector<int> world_ranks;
  for (const int member : split_members(gathered, color)) {
    world_ranks.push_back(world_rank(member));
  }
  return {std::move(world_ranks), tag};
}

std::shared_ptr<CommunicatorBackend> MessageCommunicator::split(int color, int key) {
  auto [world_ranks, tag] = split_ranks(color, key);
  return std::make_shared<MessageCommunicator>(transport_, std::move(world_ranks), tag);
}

std::shared_ptr<CommunicatorBackend> MessageCommunicator::make_lane() {
  if (!transport_->serves_helpers()) return nullptr;
  auto [world_ranks, tag] = split_ranks(0, rank_);
  return std::make_shared<MessageCommunicator>(transport_, std::move(world_ranks), tag, true);
}

void MessageCommunicator::poison(const std::string& why) noexcept {
  transport_->announce(failed_rank(transport_->rank(), why));
}

void MessageCommunicator::check_cpu(CommKind kind, const at::Tensor& tensor) const {
  check<CommError>(tensor.is_cpu(), name_of(kind), transport_->name(),
                   " ranks exchange CPU tensors: got one on ", tensor.device(),
                   "; expected cpu. Move it to the CPU first.");
}

void MessageCommunicator::copy_own(const at::Tensor& to, const at::Tensor& from) {
  check_same(to, from);
  copy_plain(to, from);
}

void MessageCommunicator::check_same(const at::Tensor& to, const at::Tensor& from) {
  if (to.sizes() == from.sizes() && to.scalar_type() == from.scalar_type()) return;
  mismatch(piece_mismatch_text(transport_->rank(), dtype_and_sizes(to), transport_->rank(),
                               dtype_and_sizes(from)));
}

void MessageCommunicator::mismatch(const std::string& what) {
  transport_->mismatch(operation_, what);
}

}  // namespace shard
