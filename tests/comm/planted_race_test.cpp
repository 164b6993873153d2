// SPDX-License-Identifier: Apache-2.0
// That ThreadSanitizer sees what the threads backend relies on: the same hand-over with its wait is
// silent, without it is reported. Only in ThreadSanitizer builds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "comm/threads/rank_gate.h"
#include "support/subprocess.h"

namespace shard::testing {
namespace {

using namespace std::chrono_literals;

/// What rank 1 reads from the slot that rank 0 fills.
int hand_over(bool waits) {
  RankGate gate(2, 0);
  int slot = 0;
  std::thread rank_0([&] {
    slot = 42;
    gate.publish(0, 1);
  });
  if (waits) gate.wait_for(0, 1, 60s);
  const int read = slot;
  rank_0.join();
  return read;
}

TEST(PlantedRace, DISABLED_WithTheWait) { EXPECT_EQ(hand_over(true), 42); }
TEST(PlantedRace, DISABLED_WithoutTheWait) { EXPECT_LE(hand_over(false), 42); }

Finished run_alone(const std::string& test) {
  return run_command(own_executable() +
                     " --gtest_also_run_disabled_tests --gtest_filter=PlantedRace." + test);
}

TEST(PlantedRace, IsReportedByThreadSanitizer) {
#ifndef __SANITIZE_THREAD__
  GTEST_SKIP() << "needs a build with ThreadSanitizer";
#endif
  const Finished raced = run_alone("DISABLED_WithoutTheWait");
  EXPECT_NE(raced.code, 0);
  EXPECT_THAT(raced.output, ::testing::HasSubstr("WARNING: ThreadSanitizer: data race"));
  const Finished ordered = run_alone("DISABLED_WithTheWait");
  EXPECT_EQ(ordered.code, 0) << ordered.output;
}

}  // namespace
}  // namespace shard::testing
