// SPDX-License-Identifier: Apache-2.0
#include "comm/failure.h"

#include <shard/error.h>

namespace shard {

void raise_failure(std::string_view where, const Failure& failure) {
  if (!failure.where.empty()) where = failure.where;
  switch (failure.kind) {
    case Failure::Kind::Timeout:
      raise<CommTimeout>(where, failure.message);
    case Failure::Kind::Mismatch:
      raise<CommMismatch>(where, failure.message);
    case Failure::Kind::Peer:
      break;
  }
  raise<PeerFailed>(where, failure.message);
}

Failure failed_rank(int world_rank, const std::string& why) {
  return {Failure::Kind::Peer, world_rank, c10::str("rank ", world_rank, " failed: ", why), {}};
}

Failure returned_rank(int world_rank, int waiting_rank, uint64_t operation) {
  return {Failure::Kind::Peer,
          world_rank,
          c10::str("rank ", world_rank, " has returned from the rank function while rank ",
                   waiting_rank, " waits for it in operation ", operation,
                   "; expected the same calls on every rank. Look for a call that rank ",
                   world_rank, " skips."),
          {}};
}

}  // namespace shard
