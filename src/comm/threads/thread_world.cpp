// SPDX-License-Identifier: Apache-2.0
#include "comm/threads/thread_world.h"

#include <c10/util/StringUtil.h>

#include "base/cores.h"
#include "comm/threads/thread_group.h"

namespace shard {

ThreadWorld::ThreadWorld(int size, std::chrono::nanoseconds timeout)
    : timeout_(timeout), spins_(size <= usable_cores() ? 300 : 0) {}

std::shared_ptr<ThreadGroup> ThreadWorld::make_group(std::vector<int> world_ranks) {
  const std::lock_guard lock(mutex_);
  return make_group_locked(std::move(world_ranks));
}

std::shared_ptr<ThreadGroup> ThreadWorld::make_group_locked(std::vector<int> world_ranks) {
  auto group = std::make_shared<ThreadGroup>(shared_from_this(), std::move(world_ranks));
  if (failure_) group->gate().poison();
  std::erase_if(groups_, [](const auto& known) { return known.expired(); });
  groups_.push_back(group);
  return group;
}

std::shared_ptr<ThreadGroup> ThreadWorld::meet(const ThreadGroup& parent, uint64_t operation,
                                               int color, const std::vector<int>& world_ranks) {
  const std::lock_guard lock(mutex_);
  const MeetingKey key{&parent, operation, color};
  Meeting& meeting = meetings_[key];
  if (!meeting.group) meeting.group = make_group_locked(world_ranks);
  auto group = meeting.group;
  if (++meeting.fetched == world_ranks.size()) meetings_.erase(key);
  return group;
}

void ThreadWorld::fail(Failure failure) noexcept {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = std::move(failure);
  meetings_.clear();
  for (const auto& known : groups_) {
    if (const auto group = known.lock()) group->gate().poison();
  }
}

std::optional<Failure> ThreadWorld::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ThreadWorld::mark_returned(int world_rank) noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& known : groups_) {
    const auto group = known.lock();
    if (!group) continue;
    const int rank = group->rank_of(world_rank);
    if (rank >= 0) group->gate().mark_returned(rank);
  }
}

Waiter ThreadWorld::next_in_circle(Waiter waiter, const ThreadWait& wait) {
  if (wait.group == nullptr) return {waiter.world_rank, true};
  const int next = wait.group->world_rank(wait.peer);
  if (!wait.group->is_lane()) return {next, false};
  const uint64_t handed_over = wait.group->slot(wait.peer).handed_over.load();
  return {next, wait.step <= 2 * handed_over};
}

std::string ThreadWorld::begin_wait(Waiter self, ThreadWait wait) {
  const std::lock_guard lock(mutex_);
  waits_.insert_or_assign(self, std::move(wait));
  std::string text;
  Waiter waiter = self;
  for (size_t hops = 0; hops < waits_.size(); ++hops) {
    const auto found = waits_.find(waiter);
    if (found == waits_.end()) return "";
    const auto& [group, peer, step, call] = found->second;
    if (group && group->gate().has_reached(peer, step)) return "";
    const Waiter next = next_in_circle(waiter, found->second);
    if (group) {
      text += c10::str(text.empty() ? "" : ", ", "rank ", waiter.world_rank, " in ", call,
                       " for rank ", next.world_rank);
    }
    if (next == self) return text;
    waiter = next;
  }
  return "";  // a circle that this rank only leads to: its own ranks tell of it
}

void ThreadWorld::end_wait(Waiter self) noexcept {
  const std::lock_guard lock(mutex_);
  waits_.erase(self);
}

}  // namespace shard
