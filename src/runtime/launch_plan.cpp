// SPDX-License-Identifier: Apache-2.0
#include "runtime/launch_plan.h"

#include <shard/environment.h>
#include <shard/error.h>

#include <cstdlib>
#include <string_view>

#include "base/parse.h"

namespace shard {
namespace {

std::optional<int> ranks_flag(int argc, const char* const* argv) {
  constexpr std::string_view kFlag = "--ranks";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == kFlag) {
      check<ConfigError>(i + 1 < argc, "--ranks",
                         "got no value; expected a whole number. Pass --ranks N.");
      return parse_count("--ranks", argv[i + 1]);
    }
    if (argument.starts_with(kFlag) && argument.substr(kFlag.size()).starts_with('=')) {
      return parse_count("--ranks", std::string(argument.substr(kFlag.size() + 1)));
    }
  }
  return std::nullopt;
}

int number_in(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : 0;
}

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

bool has_pmi() { return is_set("PMI_RANK") || is_set("PMIX_RANK"); }

LaunchPlan plan_from_slurm(int tasks) {
  LaunchPlan plan{Launcher::Mpi, tasks, c10::str("srun step with ", tasks, " tasks"), ""};
  if (has_pmi()) return plan;
  return {
      Launcher::Threads, 1, "default",
      c10::str("srun started ", tasks, " tasks but offers them no PMI, so each is a job of its ",
               "own. Use srun --mpi=pmix (or pmi2), or one task with --ranks N.")};
}

LaunchPlan plan_from_launcher(int default_ranks) {
  if (const int tasks = number_in("OMPI_COMM_WORLD_SIZE"); tasks > 0) {
    return {Launcher::Mpi, tasks, "Open MPI's mpirun", ""};
  }
  if (const int tasks = number_in("SLURM_STEP_NUM_TASKS"); tasks > 1 && is_set("SLURM_STEP_ID")) {
    return plan_from_slurm(tasks);
  }
  if (const int tasks = number_in("PMI_SIZE"); tasks > 0 && has_pmi()) {
    return {Launcher::Mpi, tasks, "mpirun (PMI)", ""};
  }
  return {Launcher::Threads, default_ranks, "default", ""};
}

}  // namespace

LaunchPlan plan_launch(int argc, const char* const* argv, const LaunchOptions& options) {
  if (const auto ranks = ranks_flag(argc, argv)) return {Launcher::Threads, *ranks, "--ranks", ""};
  if (options.ranks) {
    check<ConfigError>(*options.ranks >= 1, "launch", "options.ranks: got ", *options.ranks,
                       "; expected at least 1. Leave it out for the launcher's number.");
    return {Launcher::Threads, *options.ranks, "options.ranks", ""};
  }
  if (const auto ranks = read_environment().ranks) {
    return {Launcher::Threads, *ranks, "SHARD_RANKS", ""};
  }
  return plan_from_launcher(options.default_ranks);
}

}  // namespace shard
