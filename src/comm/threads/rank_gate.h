// SPDX-License-Identifier: Apache-2.0
// RankGate: how thread ranks wait for each other. Every rank publishes how far it is in one futex
// word, `step << 2 | returned << 1 | poisoned`; peers wait for the ranks they need (all of them: a
// barrier).
//
// NOTE [Poison wins over arrival]
// A waiter looks at the poison bit before it looks at the step. Otherwise a late rank would pass
// the barrier of a dead operation and read tensors that a failed rank has given up.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

namespace shard {

class RankGate {
 public:
  enum class Outcome : uint8_t { Arrived, Poisoned, Returned, TimedOut };

  /// `spins`: polls before the first yield; 0 unless every rank thread has a core of its own.
  RankGate(int size, int spins);

  /// Moves the rank `steps` forward. What it wrote before is visible to whoever sees the new step.
  void publish(int rank, uint32_t steps);
  /// Returns when `peer` has reached `step`, or cannot any more, or after `most`.
  Outcome wait_for(int peer, uint32_t step, std::chrono::nanoseconds most);
  bool has_reached(int peer, uint32_t step) const;
  bool is_poisoned(int rank) const;

  void poison() noexcept;
  /// The rank will publish nothing any more.
  void mark_returned(int rank) noexcept;

 private:
  struct alignas(128) Word {
    std::atomic<uint32_t> value{0};
    std::atomic<uint32_t> sleepers{0};
  };
  static Outcome sleep(Word& word, uint32_t step, std::chrono::nanoseconds most);
  void set_bit(Word& word, uint32_t bit) noexcept;

  int size_;
  int spins_;
  std::unique_ptr<Word[]> words_;
};

}  // namespace shard
