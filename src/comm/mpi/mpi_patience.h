// SPDX-License-Identifier: Apache-2.0
// MpiPatience: what a rank does between two polls of its requests: yields, later sleeps, listens to
// the control communicator, asks the ranks it waits for how far they are, and gives up when the
// time is over.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <set>

#include "comm/mpi/mpi_world.h"

namespace shard {

class MpiPatience {
 public:
  using Clock = std::chrono::steady_clock;
  MpiPatience(MpiWorld& world, const MessageOperation& operation, const MpiRequests& waiting,
              int spins, std::chrono::milliseconds timeout);
  using Lock = std::unique_lock<std::recursive_mutex>;
  /// One pause, in which `held` (NOTE [One thread in MPI]) is let go. Raises when waiting on has
  /// become pointless.
  void pause(Lock& held);

 private:
  std::set<int> missing() const;
  void ask(const std::set<int>& peers);
  void read_answers();
  void judge(int peer, const MpiProgress& theirs);
  [[noreturn]] void timed_out(Lock& held);

  MpiWorld& world_;
  const MessageOperation& operation_;
  const MpiRequests& waiting_;
  const int spins_;
  const std::chrono::milliseconds timeout_;
  int64_t polls_ = 0;
  Clock::time_point start_{};
  Clock::time_point next_question_{};
  std::map<int, int> strikes_;  ///< answers that a rank has gone past this operation
};

}  // namespace shard
