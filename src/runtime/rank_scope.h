// SPDX-License-Identifier: Apache-2.0
// RankScope: turns the calling thread into a rank, for as long as it lives: log prefix, memory
// account, communication log, generator, intra-op threads.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>
#include <shard/memory.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "base/rank_context.h"
#include "runtime/rank_generator.h"

namespace shard {

struct RankSettings {
  int world_rank = 0;
  std::optional<uint64_t> seed;         ///< of a generator of its own; nullopt: the process's
  std::optional<int> intra_op_threads;  ///< nullopt: LibTorch's own setting
};

class RankScope {
 public:
  explicit RankScope(const RankSettings& settings);
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  int outer_log_rank_;
  MemoryAccountScope memory_;
  c10::DebugInfoGuard context_;
  std::optional<RankGeneratorMode> generator_mode_;
};

}  // namespace shard
