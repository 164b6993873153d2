// SPDX-License-Identifier: Apache-2.0
// ThreadJob: one run of a rank function on N threads of this process.
#pragma once

#include <shard/launch.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/threads/thread_world.h"

namespace shard {

/// The error that a job reports: the first failing rank's own, not one that followed from it.
struct RankError {
  int world_rank = -1;
  std::exception_ptr error;  ///< null: no rank failed
};

class ThreadJob {
 public:
  ThreadJob(int ranks, const LaunchOptions& options, std::optional<int> intra_op_threads);

  /// Runs `body` on every rank and waits for all.
  RankError run(const RankFunction& body);
  /// The same, but once a rank has failed waits at most `patience` for the others; then `give_up`
  /// is called with the error and the ranks that are missing. It must not return.
  using GiveUp = std::function<void(const RankError&, const std::vector<int>& missing)>;
  RankError run(const RankFunction& body, std::chrono::milliseconds patience,
                const GiveUp& give_up);

 private:
  void run_rank(int rank, const RankFunction& body);
  void wait_for_ranks(std::chrono::milliseconds patience, const GiveUp& give_up);
  RankError first_error() const;

  int ranks_;
  LaunchOptions options_;
  std::optional<int> intra_op_threads_;
  std::shared_ptr<ThreadWorld> world_;
  std::vector<std::shared_ptr<CommunicatorBackend>> backends_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::exception_ptr> errors_;
  std::vector<char> has_ended_;
};

}  // namespace shard
