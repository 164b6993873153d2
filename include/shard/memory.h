// SPDX-License-Identifier: Apache-2.0
// CPU memory: the policy (keep freed pages in the process, since on CPU page faults cost more than
// the arithmetic) and the accounting of live and peak tensor bytes per rank.
#pragma once

#include <cstdint>
#include <memory>

namespace shard {

/// Installs the malloc policy and the accounting CPU allocator once per process; no-op with
/// SHARD_CPU_MEMORY=system. Called when libshard is loaded.
void install_memory_policy();

/// Live and peak bytes of the CPU tensors allocated by one rank. Memory freed on another thread is
/// credited to the account that allocated it.
class MemoryAccount {
 public:
  int64_t live() const;
  int64_t peak() const;
  int64_t largest() const;  ///< largest single allocation since reset_peak()
  void reset_peak();        ///< peak = live, largest = 0

  /// The account that the calling thread allocates on; the process's own unless a rank set one.
  static MemoryAccount& current();

  struct State;
  explicit MemoryAccount(State* state) : state_(state) {}
  State* state() const { return state_; }

 private:
  State* state_;
};

/// While alive, allocations of this thread are booked on a new account. `launch` opens one per
/// rank.
class MemoryAccountScope {
 public:
  MemoryAccountScope();
  ~MemoryAccountScope();
  MemoryAccountScope(const MemoryAccountScope&) = delete;
  MemoryAccountScope& operator=(const MemoryAccountScope&) = delete;

 private:
  MemoryAccount::State* outer_;
};

}  // namespace shard
