// SPDX-License-Identifier: Apache-2.0
// One sample of every patch family by the judge of the thread ranks, with processes as ranks: even
// and uneven shards of a 1-d mesh, and a 2 x 2 mesh where there are four.
#include <c10/util/StringUtil.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <support/samples.h>

#include <cstdlib>
#include <string>

#include "mpi_world.h"

namespace shard::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Whether the sample is to be run so on this many ranks.
bool is_wanted(const Setting& setting, int ranks) {
  return setting.ranks == ranks &&
         (setting.grid >= 0 || setting.split == "even" || setting.split == "uneven");
}

class SamplesOnMpiRanks : public ::testing::TestWithParam<std::string> {};

/// SHARD_CONFORMANCE=full: all of a family, else the first.
std::vector<Sample> wanted_samples(const std::string& family) {
  auto samples = samples_by_file().at(family + "_samples");
  const char* conformance = std::getenv("SHARD_CONFORMANCE");
  if (conformance == nullptr || std::string(conformance) != "full") samples.resize(1);
  return samples;
}

void expect_equal_to_plain(Sample sample, const World& world) {
  sample.check.ranks = {world.size()};
  std::vector<Setting> settings;
  for (const auto& setting : all_settings(sample, /*precisions=*/false)) {
    if (is_wanted(setting, world.size())) settings.push_back(setting);
  }
  const auto report = compare_with_plain(sample, settings, world);
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(report.equal, static_cast<int64_t>(settings.size())) << report.text();
  EXPECT_GE(report.equal, 2);
}

TEST_P(SamplesOnMpiRanks, EqualThePlainOp) {
  for (auto& sample : wanted_samples(GetParam())) expect_equal_to_plain(sample, mpi_job());
}

INSTANTIATE_TEST_SUITE_P(Of, SamplesOnMpiRanks, ::testing::ValuesIn(patch_families()),
                         [](const auto& info) { return info.param; });

/// A plain result that is right on all ranks but the last.
Sample wrong_on_the_last_rank() {
  return {"wrong on the last rank",
          {sharded(at::arange(12, at::kDouble).view({6, 2}), 0)},
          [](const std::vector<at::Tensor>& t) {
            if (!is_shard_tensor(t[0])) return t[0] * 1;
            const bool is_last = mpi_world().rank() == mpi_world().size() - 1;
            return ShardTensor(t[0]).full() + (is_last ? 1 : 0);
          },
          Check{.gradients = false}};
}

TEST(JudgeOnMpiRanks, GivesTheSameReportOnEveryRank) {
  const World& world = mpi_job();
  const auto report =
      compare_with_plain(wrong_on_the_last_rank(), {{.ranks = world.size()}}, world);
  ASSERT_EQ(report.failures.size(), 1U);
  EXPECT_THAT(report.failures[0], HasSubstr(c10::str("rank ", world.size() - 1, ":")));
  EXPECT_THAT(report.failures[0], Not(HasSubstr("rank 0:")));
  EXPECT_EQ(report.equal, 0);
}

TEST(JudgeOnMpiRanks, RefusesSettingsOfOtherNumbersOfRanks) {
  const World& world = mpi_job();
  EXPECT_THROW(compare_with_plain(wrong_on_the_last_rank(), {{.ranks = world.size() + 1}}, world),
               ConfigError);
}

}  // namespace
}  // namespace shard::testing
