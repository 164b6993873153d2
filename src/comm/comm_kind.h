// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace shard {

enum class CommKind : uint8_t {
  None,
  Barrier,
  AllReduce,
  AllGatherV,
  ReduceScatterV,
  AllToAllV,
  Broadcast,
  ScatterV,
  Exchange,
  AllGatherBytes,
  Split,
};

/// The method's name: "all_reduce".
const char* name_of(CommKind kind);

}  // namespace shard
