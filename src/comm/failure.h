// SPDX-License-Identifier: Apache-2.0
// Failure: the first thing that went wrong in a job. Once it is known every communicator of the job
// is dead and every rank raises it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shard {

struct Failure {
  enum class Kind : uint8_t { Peer, Timeout, Mismatch };
  Kind kind = Kind::Peer;
  int world_rank = -1;  ///< who caused it
  std::string message;  ///< without the leading [where]
  std::string where;    ///< empty: wherever a rank notices
};

/// Throws PeerFailed, CommTimeout or CommMismatch.
[[noreturn]] void raise_failure(std::string_view where, const Failure& failure);

/// "rank 1 failed: why"
Failure failed_rank(int world_rank, const std::string& why);
/// The failure of a rank that returned from the rank function while others still wait for it.
Failure returned_rank(int world_rank, int waiting_rank, uint64_t operation);

}  // namespace shard
