// SPDX-License-Identifier: Apache-2.0
// Every environment variable that shardtensor reads, in one place, parsed and checked once.
// docs/environment.md is the page of this file.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace shard {

struct Environment {
  /// SHARD_RANKS: number of thread ranks.
  std::optional<int> ranks;
  /// SHARD_THREADS: intra-op threads a rank (default 1 when there are several ranks).
  std::optional<int> threads;
  /// SHARD_TIMEOUT: seconds (fractions allowed) that a wait may last.
  std::chrono::milliseconds timeout{300'000};
  /// SHARD_LOG
  std::string log = "warning";
  /// SHARD_CPU_MEMORY=system: leave malloc and the CPU allocator alone.
  bool system_memory = false;
  /// SHARD_DEVICE_COMM=staged: GPU tensors travel over the host even where NCCL could carry them.
  bool staged_devices = false;
  /// SHARD_CHECK_NCCL=1: ranks compare what they are about to do before every NCCL operation.
  bool check_nccl = false;
  /// SHARD_ATTENTION: "auto", "ring", "balanced" or "heads"; see <shard/attention.h>.
  std::string attention = "auto";
  /// SHARD_EXPLAIN=1, SHARD_FALLBACK=gather, SHARD_CHECK_REPLICATED=1: see <shard/modes.h>.
  bool explain = false;
  bool gather_fallback = false;
  bool check_replicated = false;
};

/// The parsed environment; the first call reads it. Errors: ConfigError with the variable and its
/// value.
const Environment& environment();
/// Parses anew (tests, and launch before it starts ranks).
Environment read_environment();

}  // namespace shard
