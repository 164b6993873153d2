// SPDX-License-Identifier: Apache-2.0
#include "comm/threads/rank_gate.h"

#include <gtest/gtest.h>

#include <thread>

namespace shard::testing {
namespace {

using namespace std::chrono_literals;
using Outcome = RankGate::Outcome;

TEST(RankGate, LetsPassWhoeverWaitsForAReachedStep) {
  RankGate gate(2, 0);
  gate.publish(0, 3);
  EXPECT_EQ(gate.wait_for(0, 3, 1s), Outcome::Arrived);
  EXPECT_TRUE(gate.has_reached(0, 2));
  EXPECT_FALSE(gate.has_reached(0, 4));
}

TEST(RankGate, WakesASleepingRank) {
  RankGate gate(2, 0);
  std::thread late([&] { gate.publish(0, 1); });
  EXPECT_EQ(gate.wait_for(0, 1, 100s), Outcome::Arrived);
  late.join();
}

TEST(RankGate, TimesOut) {
  RankGate gate(2, 0);
  EXPECT_EQ(gate.wait_for(0, 1, 5ms), Outcome::TimedOut);
}

TEST(RankGate, LetsPoisonWinOverArrival) {
  RankGate gate(2, 0);
  gate.publish(0, 5);
  gate.poison();
  EXPECT_EQ(gate.wait_for(0, 1, 1s), Outcome::Poisoned);
  EXPECT_TRUE(gate.is_poisoned(1));
}

TEST(RankGate, TellsThatARankHasReturnedUnlessItHadArrived) {
  RankGate gate(2, 0);
  gate.publish(0, 1);
  gate.mark_returned(0);
  EXPECT_EQ(gate.wait_for(0, 1, 1s), Outcome::Arrived);
  EXPECT_EQ(gate.wait_for(0, 2, 1s), Outcome::Returned);
}

TEST(RankGate, SurvivesTheWrapAroundOfSteps) {
  constexpr uint32_t kQuarter = 1u << 28;
  RankGate gate(1, 0);
  uint32_t step = 0;
  for (int i = 0; i < 9; ++i) {
    gate.publish(0, kQuarter);
    step += kQuarter;
    EXPECT_EQ(gate.wait_for(0, step, 5ms), Outcome::Arrived);
    EXPECT_EQ(gate.wait_for(0, step + 1, 5ms), Outcome::TimedOut);
  }
}

}  // namespace
}  // namespace shard::testing
