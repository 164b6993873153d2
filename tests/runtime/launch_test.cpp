// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/log.h>

#include <atomic>
#include <cstdlib>
#include <map>

#include "runtime/launch_plan.h"

namespace shard::testing {
namespace {

using ::testing::HasSubstr;

/// The environment variables that plan_launch looks at, all unset but those given.
class LauncherEnvironment {
 public:
  explicit LauncherEnvironment(const std::map<std::string, std::string>& set) {
    for (const char* name : {"SHARD_RANKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK",
                             "PMIX_RANK", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"}) {
      if (const char* value = std::getenv(name)) outer_[name] = value;
      unsetenv(name);
      names_.push_back(name);
    }
    for (const auto& [name, value] : set) setenv(name.c_str(), value.c_str(), 1);
  }
  ~LauncherEnvironment() {
    for (const auto& name : names_) unsetenv(name.c_str());
    for (const auto& [name, value] : outer_) setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::string> outer_;
};

LaunchPlan plan(std::vector<const char*> arguments, const LaunchOptions& options = {}) {
  arguments.insert(arguments.begin(), "program");
  return plan_launch(static_cast<int>(arguments.size()), arguments.data(), options);
}

TEST(LaunchPlan, PrefersTheFlagToOptionsToTheEnvironmentToTheLauncher) {
  LaunchOptions options;
  options.ranks = 3;
  const LauncherEnvironment environment({{"SHARD_RANKS", "4"}, {"OMPI_COMM_WORLD_SIZE", "5"}});
  EXPECT_EQ(plan({"--ranks", "2"}, options).ranks, 2);
  EXPECT_EQ(plan({"--steps", "9", "--ranks=2"}, options).ranks, 2);
  EXPECT_EQ(plan({}, options).ranks, 3);
  EXPECT_EQ(plan({}).ranks, 4);
  EXPECT_EQ(plan({}).launcher, Launcher::Threads);
  unsetenv("SHARD_RANKS");
  EXPECT_EQ(plan({}).ranks, 5);
  EXPECT_EQ(plan({}).launcher, Launcher::Mpi);
}

TEST(LaunchPlan, IsOneThreadWhenNothingIsSaid) {
  const LauncherEnvironment environment({});
  EXPECT_EQ(plan({}).ranks, 1);
  EXPECT_EQ(plan({}).launcher, Launcher::Threads);
}

TEST(LaunchPlan, TrustsSlurmOnlyInAStepOfSeveralTasksWithPmi) {
  {
    const LauncherEnvironment allocation({{"SLURM_STEP_NUM_TASKS", "4"}, {"PMI_RANK", "0"}});
    EXPECT_EQ(plan({}).launcher, Launcher::Threads);
  }
  {
    const LauncherEnvironment one_task(
        {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"PMI_RANK", "0"}});
    EXPECT_EQ(plan({}).launcher, Launcher::Threads);
  }
  {
    const LauncherEnvironment no_pmi({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}});
    EXPECT_EQ(plan({}).launcher, Launcher::Threads);
    EXPECT_THAT(plan({}).warning, HasSubstr("srun --mpi=pmix"));
  }
  const LauncherEnvironment step(
      {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"PMIX_RANK", "0"}});
  EXPECT_EQ(plan({}).launcher, Launcher::Mpi);
  EXPECT_EQ(plan({}).ranks, 4);
}

TEST(LaunchPlan, TakesOtherMpirunsByTheirPmi) {
  const LauncherEnvironment environment({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}});
  EXPECT_EQ(plan({}).launcher, Launcher::Mpi);
}

TEST(LaunchPlan, RefusesABadNumberOfRanks) {
  for (const char* bad : {"0", "-2", "many", ""}) EXPECT_THROW(plan({"--ranks", bad}), ConfigError);
  EXPECT_THROW(plan({"--ranks"}), ConfigError);
  LaunchOptions options;
  options.ranks = 0;
  EXPECT_THROW(plan({}, options), ConfigError);
}

struct Launched {
  int code;
  std::string printed;
};

Launched launched(std::vector<const char*> arguments, const RankFunction& body) {
  arguments.insert(arguments.begin(), "program");
  ::testing::internal::CaptureStderr();
  const int code =
      launch(static_cast<int>(arguments.size()), const_cast<char**>(arguments.data()), body);
  return {code, ::testing::internal::GetCapturedStderr()};
}

TEST(Launch, ReturnsZeroWhenAllRanksDo) {
  std::atomic<int> ranks{0};
  const auto [code, printed] = launched({"--ranks", "3"}, [&](World&) { ++ranks; });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(ranks, 3);
  EXPECT_EQ(printed, "");
}

TEST(Launch, PrintsTheFirstErrorOnceAndReturnsOne) {
  const auto [code, printed] = launched({"--ranks", "3"}, [](World& world) {
    if (world.rank() == 2) throw std::runtime_error("boom");
    world.comm().barrier();
  });
  EXPECT_EQ(code, 1);
  EXPECT_EQ(printed, "[shard rank 2] error: boom\n");
}

TEST(Launch, PrintsAnErrorThatAllRanksRaiseOnce) {
  const auto [code, printed] = launched({"--ranks", "3"}, [](World& world) {
    world.mesh({{"a", 5}});
  });
  EXPECT_EQ(code, 1);
  EXPECT_EQ(printed.find("error"), printed.rfind("error"));
}

TEST(Launch, PrintsABadFlagWithoutStartingRanks) {
  const auto [code, printed] = launched({"--ranks", "x"}, [](World&) { ADD_FAILURE(); });
  EXPECT_EQ(code, 1);
  EXPECT_THAT(printed, HasSubstr("[shard] error: [--ranks] got 'x'; expected a whole number"));
}

TEST(Launch, LogsItsChoiceFirst) {
  set_log_level(LogLevel::Info);
  const auto [code, printed] = launched({"--ranks", "2"}, [](World&) {});
  set_log_level(LogLevel::Warning);
  EXPECT_EQ(printed, "[shard] launcher: 2 thread ranks (--ranks)\n");
}

}  // namespace
}  // namespace shard::testing
