// SPDX-License-Identifier: Apache-2.0
// Which launcher starts the ranks, and how many: decided from flags, options and the environment,
// before anything starts.
#pragma once

#include <shard/launch.h>

#include <string>

namespace shard {

struct LaunchPlan {
  Launcher launcher = Launcher::Threads;
  int ranks = 1;        ///< thread ranks; with MPI the launcher knows
  std::string reason;   ///< for the log: "--ranks"
  std::string warning;  ///< empty: none
};

/// Errors: ConfigError for a bad --ranks.
LaunchPlan plan_launch(int argc, const char* const* argv, const LaunchOptions& options);

}  // namespace shard
