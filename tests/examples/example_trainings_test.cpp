// SPDX-License-Identifier: Apache-2.0
// The example models learn on shards what they learn on whole tensors.
#include <gtest/gtest.h>
#include <shard/launch.h>

#include "support/training_check.h"

namespace shard::testing {
namespace {

class ExamplesOnThreadRanks : public ::testing::TestWithParam<std::tuple<Training, int>> {};

TEST_P(ExamplesOnThreadRanks, TrainLikePlainLibTorch) {
  const auto& [training, ranks] = GetParam();
  run_ranks(ranks, [&](World& world) { expect_training_equals_plain(training, world); });
}

INSTANTIATE_TEST_SUITE_P(Models, ExamplesOnThreadRanks,
                         ::testing::Combine(::testing::ValuesIn(example_trainings()),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_on_" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace shard::testing
