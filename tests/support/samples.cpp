// SPDX-License-Identifier: Apache-2.0
#include "support/samples.h"

#include <shard/error.h>
#include <shard/patch.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "support/op_watch.h"

namespace shard::testing {
namespace {

bool is_full() {
  const char* mode = std::getenv("SHARD_CONFORMANCE");
  return mode != nullptr && std::strcmp(mode, "full") == 0;
}

std::vector<CoveredSample> in_all_settings(const std::vector<Sample>& samples) {
  std::vector<CoveredSample> result;
  for (const auto& sample : samples) {
    result.push_back({sample, all_settings(sample, /*precisions=*/true)});
  }
  return result;
}

/// The listed ops that a sample calls, without an overload in the name.
std::set<std::string> ops_of(const Sample& sample) {
  std::set<std::string> names;
  for (const auto& call : calls_of([&] { call_plain(sample); })) names.insert(call.schema.name());
  std::set<std::string> listed;
  for (const auto& listing : list_ops()) {
    const auto name = listing.op.substr(0, listing.op.find('.'));
    if (names.contains(name)) listed.insert(name);
  }
  return listed;
}

/// Prints how the cases of every op ended when all tests have run.
class Counts : public ::testing::Environment {
 public:
  void add(const Sample& sample, const Report& report) {
    for (const auto& op : ops_of(sample)) {
      auto& count = counts_[op];
      count.first += report.equal;
      count.second += report.refused;
    }
  }
  void TearDown() override {
    for (const auto& [op, count] : counts_) {
      std::printf("%-40s %6ld equal %4ld refused\n", op.c_str(), static_cast<long>(count.first),
                  static_cast<long>(count.second));
    }
  }

 private:
  std::map<std::string, std::pair<int64_t, int64_t>> counts_;
};

Counts& counts() {
  static auto* instance = static_cast<Counts*>(::testing::AddGlobalTestEnvironment(new Counts));
  return *instance;
}

Sample& named(std::vector<Sample>& samples, const std::string& name) {
  for (auto& sample : samples) {
    if (sample.name == name) return sample;
  }
  raise<ConfigError>("samples", "got costs of '", name, "'; expected the name of a sample.");
}

}  // namespace

Sample with_costs(Sample sample, double traffic, const std::string& holds_whole) {
  sample.check.traffic = traffic;
  sample.check.holds_whole = holds_whole;
  return sample;
}

std::vector<Sample> with_costs(std::vector<Sample> samples, double traffic,
                               const std::string& holds_whole) {
  for (auto& sample : samples) sample = with_costs(std::move(sample), traffic, holds_whole);
  return samples;
}

std::vector<Sample> with_traffic(std::vector<Sample> samples,
                                 const std::map<std::string, double>& traffic) {
  for (const auto& [name, times] : traffic) named(samples, name).check.traffic = times;
  return samples;
}

std::vector<Sample> with_whole(std::vector<Sample> samples, const std::string& reason,
                               const std::vector<std::string>& names) {
  for (const auto& name : names) named(samples, name).check.holds_whole = reason;
  return samples;
}

void call_plain(const Sample& sample) {
  std::vector<at::Tensor> arguments;
  for (const auto& input : sample.inputs) arguments.push_back(input.whole.detach().clone());
  sample.function(arguments);
}

std::map<std::string, std::vector<Sample>>& samples_by_file() {
  static std::map<std::string, std::vector<Sample>> samples;
  return samples;
}

std::vector<std::string> patch_families() {
  std::set<std::string> names;
  for (const auto& listing : list_ops()) names.insert(listing.family);
  return {names.begin(), names.end()};
}

std::vector<CoveredSample> covered(const char* file, const std::vector<Sample>& samples) {
  auto& own = samples_by_file()[std::filesystem::path(file).stem()];
  own.insert(own.end(), samples.begin(), samples.end());
  if (is_full()) return in_all_settings(samples);
  const auto settings = pairwise_settings(samples);
  std::vector<CoveredSample> result;
  for (size_t i = 0; i < samples.size(); ++i) result.push_back({samples[i], settings[i]});
  return result;
}

std::vector<CoveredSample> random_samples(const char* file, Sample (*generate)(Random&)) {
  constexpr uint64_t kCount = 100;
  std::vector<CoveredSample> result;
  for (uint64_t seed = 0; seed < kCount; ++seed) {
    torch::manual_seed(seed);
    Random random(seed);
    Sample sample = generate(random);
    sample.name += "_" + std::to_string(seed);
    samples_by_file()[std::filesystem::path(file).stem()].push_back(sample);
    auto settings = all_settings(sample, /*precisions=*/true);
    if (!is_full()) settings = {random.one_of(settings)};
    result.push_back({std::move(sample), std::move(settings)});
  }
  return result;
}

void expect_conformance(const CoveredSample& covered) {
  auto report = compare_with_plain(covered.sample, covered.settings);
  report.add(judge_costs(covered.sample));
  EXPECT_TRUE(report.ok() && report.refused == 0) << report.text();
  counts().add(covered.sample, report);
}

}  // namespace shard::testing
