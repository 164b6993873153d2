// SPDX-License-Identifier: Apache-2.0
// Ways to run that help to find out what a program does, or to get it to run at all. Each is off
// until its environment variable or the function here turns it on. Process-wide: set them before
// launch(), or on every rank at the same place.
#pragma once

#include <atomic>

namespace shard {

namespace detail {
extern std::atomic<bool> explain;
}  // namespace detail

/// SHARD_EXPLAIN=1: rank 0 prints one line for every op on ShardTensors: whether a handler, a patch
/// or a rule ran, how the tensors lay before and after, what was communicated, and which inputs a
/// rule had moved. Costs microseconds an op.
void set_explain(bool on);
inline bool explains() { return detail::explain.load(std::memory_order_relaxed); }

/// What happens to an op that no patch or rule covers: MissingShardPatch (the default), or its
/// inputs are gathered, every rank computes the whole and keeps its part (SHARD_FALLBACK=gather),
/// with one warning an op. Right, but each rank holds whole tensors for that op.
enum class FallbackMode : bool { Refuse, Gather };
void set_fallback_mode(FallbackMode mode);
FallbackMode fallback_mode();

/// Sets a mode for as long as it lives.
class FallbackScope {
 public:
  explicit FallbackScope(FallbackMode mode) : outer_(fallback_mode()) { set_fallback_mode(mode); }
  ~FallbackScope() { set_fallback_mode(outer_); }
  FallbackScope(const FallbackScope&) = delete;
  FallbackScope& operator=(const FallbackScope&) = delete;

 private:
  FallbackMode outer_;
};

/// SHARD_CHECK_REPLICATED=1: plain tensors that meet ShardTensors must hold the same bits on every
/// rank; the first that does not is named in a SpecMismatch on every rank. Communicates once for
/// each such tensor.
void set_check_replicated(bool on);
bool checks_replicated();

}  // namespace shard
