// SPDX-License-Identifier: Apache-2.0
// The accounting CPU allocator. Every block is preceded by a header that says whose account it is
// booked on, so a block may be freed by any thread.
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <shard/error.h>
#include <shard/memory.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/rank_context.h"

namespace shard {

/// Several threads may allocate for one rank (autograd pool threads), so the numbers are atomic;
/// each state has cache lines of its own, so ranks do not disturb each other.
struct alignas(128) MemoryAccount::State {
  std::atomic<int64_t> live{0}, peak{0}, largest{0};
  MemoryAccount handle{this};

  void add(int64_t bytes) {
    const int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    raise_to(peak, now);
    raise_to(largest, bytes);
  }
  void subtract(int64_t bytes) { live.fetch_sub(bytes, std::memory_order_relaxed); }

  static void raise_to(std::atomic<int64_t>& most, int64_t value) {
    int64_t seen = most.load(std::memory_order_relaxed);
    while (seen < value && !most.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }
};

namespace {

using State = MemoryAccount::State;

thread_local State* thread_account = nullptr;

State& process_account() {
  static auto* state = new State;  // never destroyed: tensors may outlive static objects
  return *state;
}

State& current_state() {
  if (thread_account != nullptr) return *thread_account;
  const RankContext* context = rank_context();
  if (context != nullptr && context->account != nullptr) return *context->account;
  return process_account();
}

/// Accounts of ended scopes. A block may outlive its scope, so a state is reused only when nothing
/// is booked on it any more, and never deleted.
class RetiredAccounts {
 public:
  State* take() {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < states_.size(); ++i) {
      if (states_[i]->live.load(std::memory_order_acquire) != 0) continue;
      State* state = states_[i];
      states_.erase(states_.begin() + static_cast<std::ptrdiff_t>(i));
      state->handle.reset_peak();
      return state;
    }
    return new State;
  }
  void put(State* state) {
    const std::lock_guard lock(mutex_);
    states_.push_back(state);
  }

 private:
  std::mutex mutex_;
  std::vector<State*> states_;
};

RetiredAccounts& retired_accounts() {
  static auto* accounts = new RetiredAccounts;
  return *accounts;
}

constexpr size_t kAlignment = 64;

struct Header {
  void* block;
  int64_t bytes;
  State* account;
};
// malloc (only it serves small blocks from glibc's per-thread cache) aligns to 16, so aligned data
// with a header before it begins at most this far into the block.
constexpr size_t kRoom = kAlignment + 16;
static_assert(sizeof(Header) <= 32);

Header* header_of(void* data) { return static_cast<Header*>(data) - 1; }

[[noreturn]] void out_of_memory(size_t bytes) {
  throw c10::OutOfMemoryError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str("[memory] out of memory: got a request for ", bytes, " bytes with ",
               current_state().live.load(), " bytes of tensors live on this rank. Use more ranks ",
               "or a smaller sample."));
}

void* allocate_block(size_t bytes) {
  void* block = bytes <= SIZE_MAX - kRoom ? std::malloc(bytes + kRoom) : nullptr;
  if (block == nullptr) out_of_memory(bytes);
  const auto first = reinterpret_cast<uintptr_t>(block) + sizeof(Header);
  const uintptr_t aligned = (first + kAlignment - 1) & ~(kAlignment - 1);
  void* data = static_cast<char*>(block) + (aligned - reinterpret_cast<uintptr_t>(block));
  State& account = current_state();
  *header_of(data) = Header{block, static_cast<int64_t>(bytes), &account};
  account.add(static_cast<int64_t>(bytes));
  return data;
}

void free_block(void* data) {
  if (data == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(data);
  const Header header = *header_of(data);
  header.account->subtract(header.bytes);
  std::free(header.block);
}

class AccountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : allocate_block(bytes);
    if (data != nullptr) c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }
};

/// Read apart from environment(), which may throw: this runs while libraries are being loaded.
bool is_system_memory() {
  const char* text = std::getenv("SHARD_CPU_MEMORY");
  return text != nullptr && std::strcmp(text, "system") == 0;
}

void install_once() {
  if (is_system_memory()) return;
  // NOTE [Heaps that stay]
  // Fresh pages cost more than most ops, so large blocks come from heaps and heaps are never given
  // back: not at their ends (trim), and not whole ones of a thread (64 MB each), since the padding
  // wants as much. Each thread has an arena: with one for all, ranks would wait for its lock in
  // every op. What does not fit into a thread's heap comes from the main one.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
  static AccountingAllocator allocator;
  c10::SetCPUAllocator(&allocator);
}

[[maybe_unused]] const bool installed_at_load = (install_memory_policy(), true);

}  // namespace

void install_memory_policy() {
  static std::once_flag once;
  std::call_once(once, install_once);
}

int64_t MemoryAccount::live() const { return state_->live.load(std::memory_order_relaxed); }
int64_t MemoryAccount::peak() const { return state_->peak.load(std::memory_order_relaxed); }
int64_t MemoryAccount::largest() const { return state_->largest.load(std::memory_order_relaxed); }

void MemoryAccount::reset_peak() {
  state_->peak.store(live(), std::memory_order_relaxed);
  state_->largest.store(0, std::memory_order_relaxed);
}

MemoryAccount& MemoryAccount::current() { return current_state().handle; }

MemoryAccountScope::MemoryAccountScope() : outer_(thread_account) {
  thread_account = retired_accounts().take();
}

MemoryAccountScope::~MemoryAccountScope() {
  retired_accounts().put(thread_account);
  thread_account = outer_;
}

}  // namespace shard
