// SPDX-License-Identifier: Apache-2.0
// The judge of costs sees something: every op of every family is called by a sample that can be
// enlarged and whose traffic has a limit, or it is named here with the reason why not.
#include <gtest/gtest.h>
#include <shard/patch.h>
#include <support/op_watch.h>
#include <support/samples.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "testing/enlarged.h"

namespace shard::testing {
namespace {

std::string base_name(const std::string& op) { return op.substr(0, op.find('.')); }

/// Ops without such a sample.
const std::map<std::string, std::string>& unjudged() {
  static const std::map<std::string, std::string> reasons{};
  return reasons;
}

std::set<std::string> ops_of(const std::string& family) {
  std::set<std::string> ops;
  for (const auto& listing : list_ops()) {
    if (listing.family == family) ops.insert(base_name(listing.op));
  }
  return ops;
}

/// Those of `ops` that a sample calls.
std::set<std::string> called_by(const Sample& sample, const std::set<std::string>& ops) {
  std::set<std::string> called;
  for (const auto& call : calls_of([&] { call_plain(sample); })) {
    if (ops.contains(call.schema.name())) called.insert(call.schema.name());
  }
  return called;
}

class Judged : public ::testing::TestWithParam<std::string> {};

TEST_P(Judged, IsEveryOpBySomeSample) {
  const auto& family = GetParam();
  const auto all = ops_of(family);
  std::set<std::string> called;
  std::set<std::string> judged;
  for (const auto& sample : samples_by_file()[family + "_samples"]) {
    const auto own = called_by(sample, all);
    called.insert(own.begin(), own.end());
    const bool is_new = !std::includes(judged.begin(), judged.end(), own.begin(), own.end());
    if (is_new && std::isfinite(sample.check.traffic) && enlarged(sample))
      judged.insert(own.begin(), own.end());
  }
  for (const auto& op : called) {
    EXPECT_NE(judged.contains(op), unjudged().contains(op))
        << op
        << (judged.contains(op) ? " is judged: its reason is out of date"
                                : " has no sample whose costs are judged");
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Judged, ::testing::ValuesIn(patch_families()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shard::testing
