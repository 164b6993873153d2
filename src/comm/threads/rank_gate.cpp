// SPDX-License-Identifier: Apache-2.0
#include "comm/threads/rank_gate.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <limits>
#include <optional>

namespace shard {
namespace {

constexpr uint32_t kPoisoned = 1;
constexpr uint32_t kReturned = 2;
constexpr uint32_t kStep = 4;

// With more rank threads than cores the peer is usually runnable but not running: giving it the
// core a few times costs far less than sleeping at once (25 us) or spinning (milliseconds).
constexpr int kYields = 50;
// With a core for every rank yields cost nobody anything, and equal kernels differ by more than the
// first ones take: sleeping then adds a wake-up to the difference.
constexpr int kYieldsOnOwnCore = 400;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Steps wrap around after 2^30, so they are compared as a difference.
bool is_reached(uint32_t value, uint32_t step) {
  return static_cast<int32_t>((value & ~(kPoisoned | kReturned)) - step * kStep) >= 0;
}

std::optional<RankGate::Outcome> outcome_of(uint32_t value, uint32_t step) {
  if (value & kPoisoned) return RankGate::Outcome::Poisoned;  // NOTE [Poison wins over arrival]
  if (is_reached(value, step)) return RankGate::Outcome::Arrived;
  if (value & kReturned) return RankGate::Outcome::Returned;
  return std::nullopt;
}

void futex_wait(std::atomic<uint32_t>& value, uint32_t seen, std::chrono::nanoseconds most) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
  const timespec limit{seconds.count(), static_cast<long>((most - seconds).count())};
  // Returns at once when the word is no longer `seen`: no wake-up is lost.
  syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, seen, &limit, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& value) {
  syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, std::numeric_limits<int>::max(), nullptr, nullptr,
          0);
}

}  // namespace

RankGate::RankGate(int size, int spins)
    : size_(size), spins_(spins), words_(new Word[static_cast<size_t>(size)]) {}

void RankGate::publish(int rank, uint32_t steps) {
  Word& word = words_[static_cast<size_t>(rank)];
  // Sequentially consistent with the increment of `sleepers` in wait_for: either the sleeper
  // sees the new step or we see the sleeper.
  word.value.fetch_add(steps * kStep, std::memory_order_seq_cst);
  if (word.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(word.value);
}

RankGate::Outcome RankGate::wait_for(int peer, uint32_t step, std::chrono::nanoseconds most) {
  Word& word = words_[static_cast<size_t>(peer)];
  const int polls = spins_ > 0 ? spins_ + kYieldsOnOwnCore : kYields;
  for (int i = 0; i < polls; ++i) {
    if (const auto outcome = outcome_of(word.value.load(std::memory_order_acquire), step)) {
      return *outcome;
    }
    if (i < spins_) {
      pause_briefly();
    } else {
      sched_yield();
    }
  }
  word.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const Outcome outcome = sleep(word, step, most);
  word.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return outcome;
}

RankGate::Outcome RankGate::sleep(Word& word, uint32_t step, std::chrono::nanoseconds most) {
  const auto deadline = std::chrono::steady_clock::now() + most;
  for (;;) {
    const uint32_t seen = word.value.load(std::memory_order_seq_cst);
    if (const auto outcome = outcome_of(seen, step)) return *outcome;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) return Outcome::TimedOut;
    futex_wait(word.value, seen, left);
  }
}

bool RankGate::has_reached(int peer, uint32_t step) const {
  return is_reached(words_[static_cast<size_t>(peer)].value.load(std::memory_order_acquire), step);
}

bool RankGate::is_poisoned(int rank) const {
  return (words_[static_cast<size_t>(rank)].value.load(std::memory_order_acquire) & kPoisoned) != 0;
}

void RankGate::poison() noexcept {
  for (int r = 0; r < size_; ++r) set_bit(words_[static_cast<size_t>(r)], kPoisoned);
}

void RankGate::mark_returned(int rank) noexcept {
  set_bit(words_[static_cast<size_t>(rank)], kReturned);
}

void RankGate::set_bit(Word& word, uint32_t bit) noexcept {
  word.value.fetch_or(bit, std::memory_order_seq_cst);
  futex_wake_all(word.value);
}

}  // namespace shard
