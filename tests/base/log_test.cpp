// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <shard/log.h>

#include <thread>

namespace shard::testing {
namespace {

/// What the logger prints while `body` runs.
template <class Body>
std::string printed(const Body& body) {
  const LogLevel outer = log_level();
  ::testing::internal::CaptureStderr();
  body();
  set_log_level(outer);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, PrefixesLinesOnceWithTheRank) {
  std::thread([] {
    set_log_rank(1);
    EXPECT_EQ(printed([] { log(LogLevel::Error, "got ", 3, " rows"); }),
              "[shard rank 1] error: got 3 rows\n");
  }).join();
  EXPECT_EQ(printed([] { log(LogLevel::Warning, "no rank here"); }),
            "[shard] warning: no rank here\n");
}

TEST(Log, PrintsFromTheLevelOnThatWasSet) {
  EXPECT_EQ(printed([] {
              set_log_level(LogLevel::Warning);
              log(LogLevel::Info, "hidden");
              set_log_level(LogLevel::Debug);
              log(LogLevel::Info, "shown");
              set_log_level(LogLevel::Off);
              log(LogLevel::Error, "hidden");
            }),
            "[shard] shown\n");
}

}  // namespace
}  // namespace shard::testing
