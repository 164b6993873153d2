// SPDX-License-Identifier: Apache-2.0
// MpiControl: how MPI ranks tell each other what is not data: "I have failed", "I have ended", "how
// far are you?". It has a communicator of its own, so data and control never match, and it only
// ever polls: whoever waits for data listens here between two polls. No thread, so
// MPI_THREAD_SERIALIZED is enough.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <vector>

#include "comm/comm_kind.h"
#include "comm/failure.h"
#include "comm/mpi/mpi_header.h"

namespace shard {

/// What a rank is doing on one communicator.
struct MpiProgress {
  uint64_t operation = 0;
  CommKind kind = CommKind::None;
};

class MpiControl {
 public:
  /// Collective over `parent`.
  explicit MpiControl(MPI_Comm parent);

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Receives what has come in, answers questions. Never waits.
  void listen();

  /// Records the failure (the first one counts) and tells every rank.
  void fail(const Failure& failure) noexcept;
  const std::optional<Failure>& failure() const { return failure_; }
  /// The lowest rank that reported a failure of its own; -1: none.
  int lowest_reporter() const;

  void announce_end() noexcept;
  bool has_ended(int rank) const { return ended_[static_cast<size_t>(rank)] != 0; }
  bool have_all_ended() const;

  /// What this rank answers about communicator `tag`.
  void note(int tag, const MpiProgress& progress) { progress_[tag] = progress; }
  /// Asks how far a rank is on communicator `tag`. A rank that computes answers at its next wait.
  void ask(int rank, int tag);
  /// The answer to the last question to `rank`, once.
  std::optional<MpiProgress> take_answer(int rank);

 private:
  enum Tag : int { kFailed = 1, kEnded, kAsk, kAnswer };
  struct Message {
    std::array<char, 960> text{};
    std::array<char, 32> where{};
    MpiProgress progress;
    int communicator = -1;
    int culprit = -1;
    Failure::Kind kind = Failure::Kind::Peer;
  };
  struct Outgoing {
    Message message;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  void handle(int from, int tag, const Message& message);
  void send(int to, Tag tag, const Message& message);
  void send_to_all(Tag tag, const Message& message);
  void report(int reporter, const Failure& failure);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::optional<Failure> failure_;
  std::vector<char> reported_;
  std::vector<char> ended_;
  std::map<int, MpiProgress> progress_;
  std::vector<int> asked_;  ///< by rank: the communicator of the last question
  std::vector<std::optional<MpiProgress>> answers_;
  std::list<Outgoing> outgoing_;
};

}  // namespace shard
