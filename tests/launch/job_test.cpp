// SPDX-License-Identifier: Apache-2.0
// Whole jobs (jobs.cpp) from outside: exit code, what is printed, and that nobody hangs. Under
// mpirun and on thread ranks.
#include <c10/util/StringUtil.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/subprocess.h"

namespace shard::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string program(const std::string& job) {
  return own_executable() + " --gtest_also_run_disabled_tests --gtest_filter=Job.DISABLED_" + job;
}

Finished run_threads(int ranks, const std::string& job, const std::string& variables = "") {
  return run_command(variables + " SHARD_RANKS=" + std::to_string(ranks) + " " + program(job));
}

class MpiJob : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_mpirun()) GTEST_SKIP() << "no mpirun here";
  }
};

TEST_F(MpiJob, RunsOneRankAProcess) {
  const Finished job = run_mpi(3, program("Succeeds"));
  EXPECT_EQ(job.code, 0) << job.output;
  for (int r = 0; r < 3; ++r) {
    EXPECT_THAT(job.output, HasSubstr("<rank " + std::to_string(r) + " of 3 by mpi>"));
  }
}

TEST_F(MpiJob, LeavesTheNumberOfRanksToShardRanks) {
  const Finished job = run_mpi(1, program("Succeeds"), "SHARD_RANKS=2");
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("<rank 1 of 2 by threads>"));
}

TEST_F(MpiJob, PrintsTheErrorOfAThrowingRankOnceAndEndsItsPeers) {
  const Finished job = run_mpi(3, program("OneRankThrows"));
  EXPECT_NE(job.code, 0);
  EXPECT_EQ(occurrences(job.output, "[shard rank 1] error: boom"), 1) << job.output;
  EXPECT_EQ(occurrences(job.output, "boom"), 1) << job.output;
  EXPECT_THAT(job.output, HasSubstr("<rank 0 raised PeerFailed>"));
  EXPECT_THAT(job.output, HasSubstr("<rank 2 raised PeerFailed>"));
}

TEST_F(MpiJob, PrintsAnErrorThatAllRanksRaiseOnce) {
  const Finished job = run_mpi(3, program("AllRanksThrow"));
  EXPECT_NE(job.code, 0);
  EXPECT_EQ(occurrences(job.output, "[mesh] shape ('domain': 77): got 77 ranks; expected 3"), 1)
      << job.output;
}

TEST_F(MpiJob, NamesARankThatReturnsEarly) {
  const Finished job = run_mpi(3, program("OneRankReturns"));
  EXPECT_NE(job.code, 0);
  EXPECT_THAT(job.output, HasSubstr("rank 1 has returned from the rank function while rank"));
}

TEST_F(MpiJob, NamesBothSidesOfADisagreement) {
  const Finished sizes = run_mpi(3, program("SizesDiffer"));
  EXPECT_NE(sizes.code, 0);
  EXPECT_THAT(sizes.output, HasSubstr("all_reduce (sum) of Float [30000] on rank 1"));
  EXPECT_THAT(sizes.output, HasSubstr("all_reduce (sum) of Float [40000] on rank"));
  EXPECT_THAT(sizes.output, Not(HasSubstr("signal")));
}

TEST_F(MpiJob, FindsDisagreementsThatWouldBlock) {
  const Finished roots = run_mpi(3, program("RootsDiffer"));
  EXPECT_NE(roots.code, 0);
  EXPECT_THAT(roots.output, HasSubstr("ranks disagree about operation"));
  const Finished kinds = run_mpi(2, program("KindsDiffer"));
  EXPECT_NE(kinds.code, 0);
  EXPECT_THAT(kinds.output, HasSubstr("got barrier on rank 0, exchange on rank 1"));
}

TEST_F(MpiJob, TimesOutNamingTheMissingRank) {
  const Finished job = run_mpi(3, program("OneRankDoesNotCome"), "SHARD_TIMEOUT=1");
  EXPECT_NE(job.code, 0);
  EXPECT_THAT(
      job.output,
      HasSubstr("[barrier] timed out after 1 s in operation 1: got ranks 0, 2; missing rank 1"));
  EXPECT_THAT(job.output, HasSubstr("call 1: barrier on 'world', 0 bytes, waiting"));
  EXPECT_LT(job.elapsed.count(), 60);
}

TEST_F(MpiJob, EndsWhenARankDies) {
  const Finished job = run_mpi(2, program("OneRankDies"));
  EXPECT_NE(job.code, 0);
  EXPECT_LT(job.elapsed.count(), 60);
  EXPECT_THAT(job.output, HasSubstr("signal 9"));  // mpirun: which rank, and how
  EXPECT_THAT(job.output, HasSubstr("last calls of rank 0:\n  call 1: barrier on 'world'"));
}

/// Ends within ten seconds of what a job takes that ends well.
void expect_prompt_failure(const Finished& job, const Finished& good) {
  EXPECT_NE(job.code, 0) << job.output;
  EXPECT_LT(job.elapsed.count(), 10 + 2 * good.elapsed.count()) << job.output;
}

TEST_F(MpiJob, EndsWhenARankIsGoneBeforeItsGroupFirstMeets) {
  const Finished good = run_mpi(4, program("RanksEndAtTheirOwnTime"));
  EXPECT_EQ(good.code, 0) << good.output;
  const Finished exits = run_mpi(4, program("OneRankExitsBeforeItsPairMeets"));
  expect_prompt_failure(exits, good);
  const Finished throws = run_mpi(4, program("OneRankThrowsBeforeItsPairMeets"));
  expect_prompt_failure(throws, good);
  for (const char* rank : {"0", "2", "3"}) {
    EXPECT_THAT(throws.output, HasSubstr(c10::str("<rank ", rank, " raised PeerFailed>")));
  }
}

TEST_F(MpiJob, PrintsTheLastCallsWhenAsked) {
  const Finished job = run_mpi(2, program("IsAskedForItsLastCalls"));
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("last calls of rank 0:\n  call 1: all_reduce on 'world'"));
}

TEST_F(MpiJob, LetsRanksEndAtTheirOwnTime) {
  const Finished job = run_mpi(4, program("RanksEndAtTheirOwnTime"));
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_EQ(occurrences(job.output, "<launch returned 0>"), 4) << job.output;
}

TEST(ThreadJob, PrintsTheErrorOfAThrowingRankOnceAndEndsItsPeers) {
  const Finished job = run_threads(3, "OneRankThrows");
  EXPECT_EQ(job.code, 1);
  EXPECT_EQ(occurrences(job.output, "[shard rank 1] error: boom"), 1) << job.output;
  EXPECT_THAT(job.output, HasSubstr("<rank 0 raised PeerFailed>"));
  EXPECT_THAT(job.output, HasSubstr("<rank 2 raised PeerFailed>"));
}

TEST(ThreadJob, GivesUpOnARankThatDoesNotComeBack) {
  const Finished job = run_threads(3, "OneRankDoesNotCome", "SHARD_TIMEOUT=0.3");
  EXPECT_EQ(job.code, 1);
  EXPECT_THAT(job.output, HasSubstr("got ranks 0, 2; missing rank 1"));
  EXPECT_THAT(job.output, HasSubstr("gave up waiting for rank 1 to end"));
}

TEST(ThreadJob, PrintsTheLastCallsOfAllRanksWhenAsked) {
  const Finished job = run_threads(2, "IsAskedForItsLastCalls");
  EXPECT_EQ(job.code, 0) << job.output;
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(job.output, HasSubstr(c10::str("last calls of rank ", rank,
                                               ":\n  call 1: all_reduce on 'world'")));
  }
  EXPECT_THAT(job.output, HasSubstr("call 2: barrier on 'world', 0 bytes"));
}

TEST(ThreadJob, LetsRanksEndAtTheirOwnTime) {
  EXPECT_EQ(run_threads(4, "RanksEndAtTheirOwnTime").code, 0);
}

TEST(ThreadJob, RefusesABadEnvironment) {
  const Finished job = run_threads(2, "Succeeds", "SHARD_TIMEOUT=soon");
  EXPECT_EQ(job.code, 1);
  EXPECT_THAT(job.output, HasSubstr("[SHARD_TIMEOUT] got 'soon'; expected seconds"));
}

}  // namespace
}  // namespace shard::testing
