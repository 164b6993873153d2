// SPDX-License-Identifier: Apache-2.0
#include <shard/environment.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/log.h>

#include <algorithm>
#include <cstdlib>

#include "base/exception_text.h"
#include "comm/mpi_session.h"
#include "comm/texts.h"
#include "runtime/launch_plan.h"
#include "runtime/mpi_job.h"
#include "runtime/signal_report.h"
#include "runtime/thread_job.h"

namespace shard {
namespace {

/// After a failure, how long ranks that are still computing may take to come back.
std::chrono::milliseconds patience(const LaunchOptions& options) {
  constexpr std::chrono::milliseconds kMost{10'000};
  return std::min(kMost, options.timeout.value_or(environment().timeout));
}

void print_error(const RankError& failed) {
  const int outer = log_rank();
  set_log_rank(failed.world_rank);
  log_line(LogLevel::Error, exception_text(failed.error));
  set_log_rank(outer);
}

[[noreturn]] void give_up(const RankError& failed, const std::vector<int>& missing) {
  print_error(failed);
  log_line(LogLevel::Error, c10::str("gave up waiting for ", rank_list(missing),
                                     " to end after the failure above."));
  std::_Exit(1);
}

std::optional<int> intra_op_threads(int ranks, const LaunchOptions& options) {
  if (options.threads) return options.threads;
  if (environment().threads) return environment().threads;
  return ranks > 1 ? std::optional<int>(1) : std::nullopt;
}

int launch_threads(int ranks, const RankFunction& body, const LaunchOptions& options) {
  ThreadJob job(ranks, options, intra_op_threads(ranks, options));
  const RankError failed = job.run(body, patience(options), give_up);
  if (!failed.error) return 0;
  print_error(failed);
  return 1;
}

int launch_planned(int argc, char** argv, const RankFunction& body, const LaunchOptions& options) {
  const SignalReport report;
  LaunchPlan plan = plan_launch(argc, argv, options);
  if (plan.launcher == Launcher::Mpi && plan.ranks == 1 && !has_mpi()) {
    plan.launcher = Launcher::Threads;
  }
  if (!plan.warning.empty()) log(LogLevel::Warning, plan.warning);
  if (plan.launcher == Launcher::Mpi) {
    return launch_mpi(plan.reason, body, options, intra_op_threads(plan.ranks, options));
  }
  log(LogLevel::Info, "launcher: ", plan.ranks, " thread rank", plan.ranks == 1 ? "" : "s", " (",
      plan.reason, ")");
  return launch_threads(plan.ranks, body, options);
}

}  // namespace

int launch(int argc, char** argv, const RankFunction& body, LaunchOptions options) {
  try {
    return launch_planned(argc, argv, body, options);
  } catch (...) {
    log_line(LogLevel::Error, exception_text(std::current_exception()));
    return 1;
  }
}

void run_ranks(int ranks, const RankFunction& body, LaunchOptions options) {
  check<ConfigError>(ranks >= 1, "run_ranks", "ranks: got ", ranks,
                     "; expected at least 1. Pass how many threads to run.");
  const RankError failed = ThreadJob(ranks, options, options.threads.value_or(1)).run(body);
  if (failed.error) std::rethrow_exception(failed.error);
}

}  // namespace shard
