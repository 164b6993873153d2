// SPDX-License-Identifier: Apache-2.0
#include "comm/threads/thread_group.h"

#include <algorithm>

namespace shard {

void SharedFingerprint::store(const Fingerprint& fingerprint) {
  for (size_t i = 0; i < words_.size(); ++i) {
    words_[i].store(fingerprint.words()[i], std::memory_order_relaxed);
  }
}

Fingerprint SharedFingerprint::load() const {
  Fingerprint::Words words;
  for (size_t i = 0; i < words_.size(); ++i) words[i] = words_[i].load(std::memory_order_relaxed);
  return Fingerprint(words);
}

ThreadGroup::ThreadGroup(std::shared_ptr<ThreadWorld> world, std::vector<int> world_ranks)
    : world_(std::move(world)),
      world_ranks_(std::move(world_ranks)),
      gate_(size(), world_->spins()),
      slots_(world_ranks_.size()),
      mailboxes_(world_ranks_.size() * world_ranks_.size()) {
  for (RankSlot& slot : slots_) {
    slot.received = std::vector<std::atomic<int64_t>>(world_ranks_.size());
  }
}

int ThreadGroup::rank_of(int world_rank) const {
  const auto found = std::find(world_ranks_.begin(), world_ranks_.end(), world_rank);
  return found == world_ranks_.end() ? -1 : static_cast<int>(found - world_ranks_.begin());
}

}  // namespace shard
