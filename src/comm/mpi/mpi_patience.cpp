// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_patience.h"

#include <sched.h>
#include <shard/error.h>

#include <thread>

#include "comm/texts.h"

namespace shard {
namespace {

using namespace std::chrono_literals;

constexpr auto kQuestionInterval = 500ms;  // much longer than any healthy wait for a message
constexpr auto kAnswerTime = 500ms;        // that a polling rank needs at most to answer
constexpr auto kNapAfter = 20ms;
constexpr auto kNap = 200us;
constexpr auto kHelperNap = 50us;  // a helper that yields takes its rank's core half of the time
constexpr int64_t kListenEvery = 16;

/// Lets other threads of the rank call MPI for that long; zero: only whoever is ready to.
void let_go(MpiPatience::Lock& held, std::chrono::microseconds time) {
  held.unlock();
  if (time.count() > 0) {
    std::this_thread::sleep_for(time);
  } else {
    sched_yield();
  }
  held.lock();
}

}  // namespace

MpiPatience::MpiPatience(MpiWorld& world, const MessageOperation& operation,
                         const MpiRequests& waiting, int spins, std::chrono::milliseconds timeout)
    : world_(world),
      operation_(operation),
      waiting_(waiting),
      spins_(operation.is_of_helper ? 0 : spins),
      timeout_(timeout) {}

void MpiPatience::pause(Lock& held) {
  if (polls_++ < spins_) return;
  if (start_ == Clock::time_point{}) {
    start_ = Clock::now();
    next_question_ = start_ + std::min<Clock::duration>(kQuestionInterval, timeout_);
  }
  if (polls_ % kListenEvery != 0) {
    let_go(held, operation_.is_of_helper ? kHelperNap : 0us);
    return;
  }
  world_.control().listen();
  world_.raise_if_failed(operation_);
  read_answers();
  const auto now = Clock::now();
  if (now - start_ > timeout_) timed_out(held);
  if (now >= next_question_) {
    ask(missing());
    next_question_ = now + kQuestionInterval;
  }
  if (now - start_ > kNapAfter) let_go(held, kNap);
}

std::set<int> MpiPatience::missing() const {
  std::set<int> peers;
  for (size_t i = 0; i < waiting_.requests.size(); ++i) {
    if (waiting_.requests[i] != MPI_REQUEST_NULL) peers.insert(waiting_.peers[i]);
  }
  return peers;
}

void MpiPatience::ask(const std::set<int>& peers) {
  for (const int peer : peers) world_.control().ask(peer, operation_.tag);
}

void MpiPatience::read_answers() {
  for (const int peer : missing()) {
    if (const auto answer = world_.control().take_answer(peer)) judge(peer, *answer);
  }
}

// The rank we wait for has told where it is. Behind us: it is late (or has ended and will never
// come). In the same operation: it must be of the same kind. Ahead of us: it has sent all it had
// to, so what we wait for will not come; two answers in a row, since its last message and its
// answer may overtake each other.
void MpiPatience::judge(int peer, const MpiProgress& theirs) {
  if (theirs.operation < operation_.number) {
    if (world_.control().has_ended(peer)) {
      world_.fail(operation_, returned_rank(peer, world_.rank(), operation_.number));
    }
    return;
  }
  const bool is_same = theirs.operation == operation_.number;
  if (is_same && theirs.kind == operation_.kind && !world_.control().has_ended(peer)) return;
  if (++strikes_[peer] < 2) return;
  const std::string their_call =
      is_same ? name_of(theirs.kind)
              : c10::str(name_of(theirs.kind), " (its operation ", theirs.operation, ")");
  world_.fail(operation_,
              {Failure::Kind::Mismatch, world_.rank(),
               disagreement_text(operation_.number, {{name_of(operation_.kind), {world_.rank()}},
                                                     {their_call, {peer}}}),
               name_of(operation_.kind)});
}

// Who has arrived is asked of all ranks, not only of those that this one waits for.
void MpiPatience::timed_out(Lock& held) {
  std::set<int> away(operation_.members.begin(), operation_.members.end());
  away.erase(world_.rank());
  ask(away);
  std::vector<int> here{world_.rank()};
  const auto until = Clock::now() + kAnswerTime;
  while (Clock::now() < until && !away.empty()) {
    world_.control().listen();
    for (const int peer : std::set<int>(away)) {
      const auto answer = world_.control().take_answer(peer);
      if (!answer || answer->operation < operation_.number) continue;
      away.erase(peer);
      here.push_back(peer);
    }
    let_go(held, kNap);
  }
  world_.raise_if_failed(operation_);
  if (away.empty()) away = missing();
  const std::vector<int> late(away.begin(), away.end());
  const double seconds = std::chrono::duration<double>(timeout_).count();
  world_.fail(operation_, {Failure::Kind::Timeout, late.front(),
                           timeout_text(seconds, operation_.number, std::move(here), late),
                           name_of(operation_.kind)});
}

}  // namespace shard
