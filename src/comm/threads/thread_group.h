// SPDX-License-Identifier: Apache-2.0
// ThreadGroup: the memory that the ranks of one communicator share. Every rank has a slot that it
// fills before it arrives and that the others read afterwards; an exchange uses one mailbox a pair
// instead, so that only ranks with messages for each other wait for each other.
//
// NOTE [Slots own their tensors]
// Peers copy straight from and into the tensors of a slot. The slot holds references of its own,
// and they stay when an operation fails, so a peer never touches memory that a failing rank has let
// go.
//
// NOTE [Two fingerprints a rank]
// A rank may begin its next collective while a slow one still compares fingerprints of the last
// (barrier and small all_reduce end without a second wait). So the fingerprints of successive
// collectives alternate between two places: the place is reused two collectives later, which nobody
// begins before all began the one between.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/fingerprint.h"
#include "comm/threads/rank_gate.h"
#include "comm/threads/thread_world.h"
#include "comm/volume.h"

namespace shard {

/// A fingerprint that may be read while it is being replaced: the sequence number tells.
class SharedFingerprint {
 public:
  void store(const Fingerprint& fingerprint);
  Fingerprint load() const;

 private:
  std::array<std::atomic<uint64_t>, Fingerprint::kWords> words_{};
};

struct alignas(128) RankSlot {
  std::array<SharedFingerprint, 2> fingerprints;
  /// What the rank is doing: sequence << 8 | kind.
  std::atomic<uint64_t> activity{0};
  std::vector<at::Tensor> tensors;
  std::string bytes;
  std::array<std::unique_ptr<std::byte[]>, 2> staging;  ///< kSmallReduceBytes each
  std::vector<std::atomic<int64_t>> received;  ///< bytes, by sender; written by the rank alone
  std::atomic<int64_t> stored{0};              ///< bytes written into peers' tensors
  std::atomic<uint64_t> handed_over{0};        ///< of a lane: operations given to the helper
};

/// Messages from one rank to another. `posted` and `taken` hold sequence numbers.
struct alignas(128) Mailbox {
  std::atomic<uint64_t> posted{0};
  std::atomic<uint64_t> taken{0};
  std::vector<at::Tensor> tensors;
};

class ThreadGroup {
 public:
  ThreadGroup(std::shared_ptr<ThreadWorld> world, std::vector<int> world_ranks);

  int size() const { return static_cast<int>(world_ranks_.size()); }
  int world_rank(int rank) const { return world_ranks_[static_cast<size_t>(rank)]; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  /// -1: not a member.
  int rank_of(int world_rank) const;

  /// NOTE [Lanes]: the members are helper threads. Said by each before its first operation.
  void mark_as_lane() { is_lane_.store(true, std::memory_order_relaxed); }
  bool is_lane() const { return is_lane_.load(std::memory_order_relaxed); }

  ThreadWorld& world() { return *world_; }
  RankGate& gate() { return gate_; }
  RankSlot& slot(int rank) { return slots_[static_cast<size_t>(rank)]; }
  Mailbox& mailbox(int from, int to) { return mailboxes_[place(from) * place(size()) + place(to)]; }

 private:
  static size_t place(int rank) { return static_cast<size_t>(rank); }

  std::shared_ptr<ThreadWorld> world_;
  std::vector<int> world_ranks_;
  std::atomic<bool> is_lane_{false};
  RankGate gate_;
  std::vector<RankSlot> slots_;
  std::vector<Mailbox> mailboxes_;
};

}  // namespace shard
