// SPDX-License-Identifier: Apache-2.0
// RankContext: what a thread needs to know about the rank on whose behalf it works. It lives in a
// slot of c10::ThreadLocalDebugInfo, which LibTorch carries over to every thread that continues an
// autograd graph (nested backward deeper than 60 runs on a pool thread, CUDA backward on a device
// thread). Nothing that decides which data to move reads it: rank and communicator come from a
// tensor's mesh.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <shard/memory.h>

#include <memory>

namespace shard {

class CommLog;
class HandlerTable;

struct RankContext : c10::DebugInfoBase {
  int world_rank = -1;
  MemoryAccount::State* account = nullptr;
  std::shared_ptr<CommLog> comm_log;
  std::shared_ptr<HandlerTable> handlers;  ///< null: none
  at::Generator generator;                 ///< undefined: the process's own default generator
};

/// The slot. LibTorch itself uses it in one unit test of its own only.
inline constexpr auto kRankContextKind = c10::DebugInfoKind::TEST_INFO_2;

/// The context of the rank that the calling thread works for, or null.
inline RankContext* rank_context() {
  return static_cast<RankContext*>(c10::ThreadLocalDebugInfo::get(kRankContextKind));
}

}  // namespace shard
