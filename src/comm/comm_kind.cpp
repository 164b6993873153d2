// SPDX-License-Identifier: Apache-2.0
#include "comm/comm_kind.h"

#include <shard/communicator.h>

#include <array>

namespace shard {

const char* name_of(CommKind kind) {
  constexpr std::array<const char*, 11> kNames{
      "nothing",          "barrier",          "all_reduce", "all_gather_v",
      "reduce_scatter_v", "all_to_all_v",     "broadcast",  "scatter_v",
      "exchange",         "all_gather_bytes", "split"};
  return kNames.at(static_cast<size_t>(kind));
}

const char* name_of(ReduceOp op) {
  constexpr std::array<const char*, 4> kNames{"sum", "avg", "max", "min"};
  return kNames.at(static_cast<size_t>(op));
}

}  // namespace shard
