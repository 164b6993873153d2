// SPDX-License-Identifier: Apache-2.0
#include "runtime/thread_job.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/DeviceGuard.h>
#include <shard/environment.h>
#include <shard/error.h>

#include <algorithm>
#include <thread>

#include "base/exception_text.h"
#include "comm/threads/thread_communicator.h"
#include "runtime/rank_device.h"
#include "runtime/rank_scope.h"

namespace shard {

ThreadJob::ThreadJob(int ranks, const LaunchOptions& options, std::optional<int> intra_op_threads)
    : ranks_(ranks),
      options_(options),
      intra_op_threads_(intra_op_threads),
      world_(std::make_shared<ThreadWorld>(ranks, options.timeout.value_or(environment().timeout))),
      errors_(static_cast<size_t>(ranks)),
      has_ended_(static_cast<size_t>(ranks), 0) {
  for (auto& communicator : make_thread_communicators(world_, ranks)) {
    backends_.push_back(std::move(communicator));
  }
}

RankError ThreadJob::run(const RankFunction& body) { return run(body, {}, nullptr); }

RankError ThreadJob::run(const RankFunction& body, std::chrono::milliseconds patience,
                         const GiveUp& give_up) {
  const int threads_before = at::get_num_threads();
  const DefaultGeneratorRouting routing;
  const at::ThreadLocalState caller;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks_; ++rank) {
    threads.emplace_back([&, rank] {
      const at::ThreadLocalStateGuard state(caller);  // grad, inference and autocast modes
      run_rank(rank, body);
    });
  }
  if (give_up) wait_for_ranks(patience, give_up);
  for (auto& thread : threads) thread.join();
  at::set_num_threads(
      threads_before);  // LibTorch remembers the last setting of any thread for new threads
  return first_error();
}

void ThreadJob::run_rank(int rank, const RankFunction& body) {
  const auto index = static_cast<size_t>(rank);
  std::exception_ptr error;
  try {
    const RankScope scope({rank, options_.seed, intra_op_threads_});
    const c10::Device device = device_of_thread_rank(options_.device, rank, ranks_);
    const c10::DeviceGuard guard(device);
    World world(Communicator(backend_for(std::move(backends_[index]), device), "world"),
                Launcher::Threads, device);
    body(world);
    world_->mark_returned(rank);
  } catch (...) {
    error = std::current_exception();
    world_->fail(failed_rank(rank, exception_text(error)));
  }
  const std::lock_guard lock(mutex_);
  errors_[index] = error;
  has_ended_[index] = 1;
  changed_.notify_all();
}

void ThreadJob::wait_for_ranks(std::chrono::milliseconds patience, const GiveUp& give_up) {
  const auto all_ended = [this] {
    return std::all_of(has_ended_.begin(), has_ended_.end(), [](char ended) { return ended != 0; });
  };
  const auto any_failed = [this] {
    return std::any_of(errors_.begin(), errors_.end(), [](const auto& error) { return !!error; });
  };
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return all_ended() || any_failed(); });
  if (changed_.wait_for(lock, patience, all_ended)) return;
  std::vector<int> missing;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (has_ended_[static_cast<size_t>(rank)] == 0) missing.push_back(rank);
  }
  give_up(first_error(), missing);
}

RankError ThreadJob::first_error() const {
  const auto failure = world_->failure();
  if (failure && failure->kind == Failure::Kind::Peer && failure->world_rank < ranks_) {
    const auto& own = errors_[static_cast<size_t>(failure->world_rank)];
    if (own) return {failure->world_rank, own};
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    if (errors_[static_cast<size_t>(rank)]) return {rank, errors_[static_cast<size_t>(rank)]};
  }
  return {};
}

}  // namespace shard
