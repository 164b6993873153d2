// SPDX-License-Identifier: Apache-2.0
// Samples of patches: every file tests/patches/<family>_samples.cpp names those of
// patches/<family>.cpp. Each is one test, run in a pairwise cover of ranks, splits, meshes and
// precisions (in all of them with SHARD_CONFORMANCE=full).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/testing.h>
#include <support/random.h>

#include <limits>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace shard::testing {

inline std::ostream& operator<<(std::ostream& out, const Sample& sample) {
  return out << sample.name;
}

/// A sample with the settings that it is run in.
struct CoveredSample {
  Sample sample;
  std::vector<Setting> settings;
};
inline std::ostream& operator<<(std::ostream& out, const CoveredSample& covered) {
  return out << covered.sample.name;
}

/// `file`: where they stand.
std::vector<CoveredSample> covered(const char* file, const std::vector<Sample>& samples);
/// 100 samples of a generator, seeded by their number, in one setting each (in all of them with
/// SHARD_CONFORMANCE=full).
std::vector<CoveredSample> random_samples(const char* file, Sample (*generate)(Random&));

/// Fails the current test unless the sample equals its plain self in all settings and costs what it
/// may. Counts, for
/// every op that the sample calls, the cases that were equal or refused.
void expect_conformance(const CoveredSample& covered);

/// Everything that files named and generated, by the file's name without its ending.
std::map<std::string, std::vector<Sample>>& samples_by_file();
/// The names of all patch files, as list_ops() has them.
std::vector<std::string> patch_families();
/// Calls the sample's function on copies of its whole inputs.
void call_plain(const Sample& sample);

/// A sample that may send so much and, when a reason is given, hold whole tensors (see
/// judge_costs).
Sample with_costs(Sample sample, double traffic, const std::string& holds_whole = {});
std::vector<Sample> with_costs(std::vector<Sample> samples, double traffic,
                               const std::string& holds_whole = {});
/// The traffic of samples whose bytes are counted by tests of their own.
inline constexpr double kCountedElsewhere = std::numeric_limits<double>::infinity();
/// The samples, of which those that are named may send so many times their tensors
/// (Check::traffic).
std::vector<Sample> with_traffic(std::vector<Sample> samples,
                                 const std::map<std::string, double>& traffic);
/// The samples, of which these ones may hold a whole tensor on every rank (Check::holds_whole).
std::vector<Sample> with_whole(std::vector<Sample> samples, const std::string& reason,
                               const std::vector<std::string>& names);

using SampleTest = ::testing::TestWithParam<CoveredSample>;

inline std::string name_of_sample(const ::testing::TestParamInfo<CoveredSample>& info) {
  return info.param.sample.name;
}

}  // namespace shard::testing

// NOLINTBEGIN(bugprone-macro-parentheses): a class cannot stand in parentheses
#define SHARD_SAMPLE_TESTS(Suite, covered_samples)                                      \
  class Suite : public ::shard::testing::SampleTest {};                                 \
  TEST_P(Suite, EqualsThePlainOp) { ::shard::testing::expect_conformance(GetParam()); } \
  INSTANTIATE_TEST_SUITE_P(Situation, Suite, ::testing::ValuesIn(covered_samples),      \
                           ::shard::testing::name_of_sample)

// NOLINTEND(bugprone-macro-parentheses)

/// Tests `Suite.Situation/<name>` for every sample of the vector `samples`.
#define SHARD_SAMPLES(Suite, samples) \
  SHARD_SAMPLE_TESTS(Suite, ::shard::testing::covered(__FILE__, samples))
/// Tests 100 random samples, made by a function `Sample generate(Random&)`.
#define SHARD_RANDOM_SAMPLES(Suite, generate) \
  SHARD_SAMPLE_TESTS(Suite, ::shard::testing::random_samples(__FILE__, generate))
