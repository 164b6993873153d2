// SPDX-License-Identifier: Apache-2.0
// ThreadWorld: what all communicators of one job of thread ranks share: its first failure, which
// ranks have returned, who waits for whom, and the meeting place where ranks that split a
// communicator find their common group.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "comm/failure.h"

namespace shard {

class ThreadGroup;

/// A rank, or the helper thread of a rank (NOTE [Lanes]).
struct Waiter {
  int world_rank = 0;
  bool is_helper = false;
  auto operator<=>(const Waiter&) const = default;
};

/// What is waited for: that `peer` reaches `step` at the gate of `group`.
struct ThreadWait {
  ThreadGroup* group = nullptr;  ///< null: a rank waits for its own helper
  int peer = 0;                  ///< in the group
  uint32_t step = 0;
  std::string call;  ///< "barrier (operation 3 of ranks 0, 1)"
};

class ThreadWorld : public std::enable_shared_from_this<ThreadWorld> {
 public:
  ThreadWorld(int size, std::chrono::nanoseconds timeout);

  std::chrono::nanoseconds timeout() const { return timeout_; }
  /// Polls before a waiting rank yields.
  int spins() const { return spins_; }

  std::shared_ptr<ThreadGroup> make_group(std::vector<int> world_ranks);
  /// The group that the ranks of `parent` which passed `color` to its operation `operation` share:
  /// made by the first of them, forgotten when the last has fetched it.
  std::shared_ptr<ThreadGroup> meet(const ThreadGroup& parent, uint64_t operation, int color,
                                    const std::vector<int>& world_ranks);

  /// Records the failure unless there is one already, and ends every wait of the job.
  void fail(Failure failure) noexcept;
  std::optional<Failure> failure() const;
  /// The rank function of `world_rank` has returned: nobody may wait for it any more.
  void mark_returned(int world_rank) noexcept;

  /// NOTE [Deadlock]
  /// Notes that `self` has begun a long wait. When ranks now wait for each other in a circle, none
  /// of them can go on: the text says who waits where for whom. Else empty. A rank that takes its
  /// wait back has been noted until then, so whoever is in a circle of unreached steps is asleep.
  /// Who has to act for a step of a lane: the helper, if the rank has handed the operation over,
  /// else the rank.
  std::string begin_wait(Waiter self, ThreadWait wait);
  void end_wait(Waiter self) noexcept;

 private:
  struct Meeting {
    std::shared_ptr<ThreadGroup> group;
    size_t fetched = 0;
  };
  using MeetingKey = std::tuple<const ThreadGroup*, uint64_t, int>;
  static Waiter next_in_circle(Waiter waiter, const ThreadWait& wait);
  std::shared_ptr<ThreadGroup> make_group_locked(std::vector<int> world_ranks);

  const std::chrono::nanoseconds timeout_;
  const int spins_;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
  std::vector<std::weak_ptr<ThreadGroup>> groups_;
  std::map<MeetingKey, Meeting> meetings_;
  std::map<Waiter, ThreadWait> waits_;
};

}  // namespace shard
