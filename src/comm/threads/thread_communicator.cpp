// SPDX-License-Identifier: Apache-2.0
// Synchronisation and errors of the threads backend; the data movement is in thread_collectives.cpp
// and thread_exchange.cpp.
#include "comm/threads/thread_communicator.h"

#include <shard/error.h>

#include <algorithm>
#include <map>

#include "comm/texts.h"

namespace shard {
namespace {

using namespace std::chrono_literals;

/// Much longer than any wait for a rank that is on its way here.
constexpr std::chrono::nanoseconds kUnsuspicious = 200ms;

}  // namespace

ThreadCommunicator::ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
    : group_(std::move(group)), rank_(rank) {
  for (int i = 1; i < size(); ++i) others_.push_back((rank_ + i) % size());
}

Fingerprint ThreadCommunicator::start(CommKind kind) {
  kind_ = kind;
  ++sequence_;
  if (group_->gate().is_poisoned(rank_)) fail({});
  own().activity.store(sequence_ << 8 | static_cast<uint64_t>(kind), std::memory_order_relaxed);
  return {sequence_, kind};
}

Fingerprint ThreadCommunicator::start_collective(CommKind kind) {
  ++collectives_;
  return start(kind);
}

void ThreadCommunicator::begin(const Fingerprint& fingerprint, uint32_t steps) {
  announce(fingerprint, steps);
  meet(fingerprint);
}

void ThreadCommunicator::announce(const Fingerprint& fingerprint, uint32_t steps) {
  own().fingerprints[collectives_ % 2].store(fingerprint);  // NOTE [Two fingerprints a rank]
  group_->gate().publish(rank_, steps);
}

void ThreadCommunicator::meet(const Fingerprint& fingerprint) {
  wait_for(others_, begun());
  compare_fingerprints(fingerprint);
}

void ThreadCommunicator::begin_with(const Fingerprint& fingerprint,
                                    c10::ArrayRef<at::Tensor> tensors) {
  announce_with(fingerprint, tensors);
  meet(fingerprint);
}

void ThreadCommunicator::announce_with(const Fingerprint& fingerprint,
                                       c10::ArrayRef<at::Tensor> tensors) {
  own().tensors.assign(tensors.begin(), tensors.end());
  announce(fingerprint, 1);
}

void ThreadCommunicator::end(bool wait) {
  group_->gate().publish(rank_, 1);
  if (wait) wait_for(others_, ended());
  own().tensors.clear();
}

void ThreadCommunicator::wait_for(c10::ArrayRef<int> peers, uint32_t step) {
  const auto timeout = group_->world().timeout();
  for (const int peer : peers) {
    RankGate::Outcome outcome =
        group_->gate().wait_for(peer, step, std::min(timeout, kUnsuspicious));
    if (outcome == RankGate::Outcome::TimedOut && timeout > kUnsuspicious) {
      outcome = wait_long(peer, step, timeout - kUnsuspicious);
    }
    switch (outcome) {
      case RankGate::Outcome::Arrived:
        continue;
      case RankGate::Outcome::Poisoned:
        fail({});
      case RankGate::Outcome::Returned:
        fail(returned_rank(group_->world_rank(peer), group_->world_rank(rank_), sequence_));
      case RankGate::Outcome::TimedOut:
        timed_out(peers, step);
    }
  }
}

RankGate::Outcome ThreadCommunicator::wait_long(int peer, uint32_t step,
                                                std::chrono::nanoseconds most) {
  ThreadWorld& world = group_->world();
  const Waiter self{group_->world_rank(rank_), group_->is_lane()};
  const std::string call = c10::str(name_of(kind_), " (operation ", sequence_, " of ",
                                    rank_list(group_->world_ranks()), ")");
  const std::string circle = world.begin_wait(self, {group_.get(), peer, step, call});
  RankGate::Outcome outcome = RankGate::Outcome::TimedOut;
  if (circle.empty()) outcome = group_->gate().wait_for(peer, step, most);
  world.end_wait(self);
  if (!circle.empty()) mismatch(deadlock_text(circle));
  return outcome;
}

void ThreadCommunicator::timed_out(c10::ArrayRef<int> peers, uint32_t step) {
  std::vector<int> arrived{group_->world_rank(rank_)};
  std::vector<int> missing;
  for (const int peer : peers) {
    auto& list = group_->gate().has_reached(peer, step) ? arrived : missing;
    list.push_back(group_->world_rank(peer));
  }
  if (missing.empty()) missing.push_back(group_->world_rank(peers.back()));  // arrived just now
  const double seconds = std::chrono::duration<double>(group_->world().timeout()).count();
  fail({Failure::Kind::Timeout, missing.front(),
        timeout_text(seconds, sequence_, std::move(arrived), std::move(missing)), name_of(kind_)});
}

void ThreadCommunicator::compare_fingerprints(const Fingerprint& own_fingerprint) {
  std::map<std::string, std::vector<int>> calls;
  for (const int peer : others_) {
    const Fingerprint theirs = group_->slot(peer).fingerprints[collectives_ % 2].load();
    if (theirs == own_fingerprint) continue;
    const bool is_same_call = theirs.sequence() == own_fingerprint.sequence();
    calls[is_same_call ? theirs.text() : activity_of(peer)].push_back(group_->world_rank(peer));
  }
  if (calls.empty()) return;
  auto& agreeing = calls[own_fingerprint.text()];
  for (int r = 0; r < size(); ++r) {
    const Fingerprint theirs = group_->slot(r).fingerprints[collectives_ % 2].load();
    if (theirs == own_fingerprint) agreeing.push_back(group_->world_rank(r));
  }
  mismatch(disagreement_text(sequence_, calls));
}

void ThreadCommunicator::mismatch(const std::string& what) {
  fail({Failure::Kind::Mismatch, group_->world_rank(rank_), what, name_of(kind_)});
}

// The job's first failure is the one that every rank reports.
void ThreadCommunicator::fail(Failure failure) {
  ThreadWorld& world = group_->world();
  if (!failure.message.empty()) world.fail(std::move(failure));
  raise_failure(name_of(kind_), *world.failure());
}

std::string ThreadCommunicator::activity_of(int peer) {
  const uint64_t activity = group_->slot(peer).activity.load(std::memory_order_relaxed);
  return c10::str(name_of(static_cast<CommKind>(activity & 0xff)), " (its operation ",
                  activity >> 8, ")");
}

void ThreadCommunicator::poison(const std::string& why) noexcept {
  group_->world().fail(failed_rank(group_->world_rank(rank_), why));
}

int64_t ThreadCommunicator::bytes_sent() const {
  const auto sender = static_cast<size_t>(rank_);
  int64_t bytes = group_->slot(rank_).stored.load(std::memory_order_relaxed);
  for (int r = 0; r < size(); ++r) {
    bytes += group_->slot(r).received[sender].load(std::memory_order_relaxed);
  }
  return bytes;
}

std::pair<std::shared_ptr<ThreadGroup>, int> ThreadCommunicator::split_group(int color, int key) {
  const std::vector<int> members =
      split_members(gather_bytes(CommKind::Split, split_bytes(color, key)), color);
  std::vector<int> world_ranks;
  for (const int member : members) world_ranks.push_back(group_->world_rank(member));
  auto group = group_->world().meet(*group_, sequence_, color, world_ranks);
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  return {std::move(group), static_cast<int>(place)};
}

std::shared_ptr<CommunicatorBackend> ThreadCommunicator::split(int color, int key) {
  auto [group, place] = split_group(color, key);
  return std::make_shared<ThreadCommunicator>(std::move(group), place);
}

std::shared_ptr<CommunicatorBackend> ThreadCommunicator::make_lane() {
  auto [group, place] = split_group(0, rank_);
  group->mark_as_lane();
  return std::make_shared<ThreadCommunicator>(std::move(group), place);
}

void ThreadCommunicator::note_handed_over() {
  own().handed_over.fetch_add(1, std::memory_order_relaxed);
}

// A circle that this wait closes is a failure of the job, which ends the helper's wait.
void ThreadCommunicator::note_rank_waits(bool waits) {
  ThreadWorld& world = group_->world();
  const Waiter self{group_->world_rank(rank_), false};
  if (!waits) return world.end_wait(self);
  const std::string circle = world.begin_wait(self, {});
  if (circle.empty()) return;
  world.fail({Failure::Kind::Mismatch, self.world_rank, deadlock_text(circle),
              name_of(CommKind::Exchange)});
}

std::vector<std::shared_ptr<ThreadCommunicator>> make_thread_communicators(
    const std::shared_ptr<ThreadWorld>& world, int size) {
  std::vector<int> world_ranks(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) world_ranks[static_cast<size_t>(r)] = r;
  const auto group = world->make_group(std::move(world_ranks));
  std::vector<std::shared_ptr<ThreadCommunicator>> communicators;
  for (int r = 0; r < size; ++r) {
    communicators.push_back(std::make_shared<ThreadCommunicator>(group, r));
  }
  return communicators;
}

}  // namespace shard
