// SPDX-License-Identifier: Apache-2.0
// The trainings of the thread ranks' test with processes as ranks.
#include <gtest/gtest.h>

#include "mpi_world.h"
#include "support/training_check.h"

namespace shard::testing {
namespace {

class ExamplesOnMpiRanks : public ::testing::TestWithParam<Training> {};

TEST_P(ExamplesOnMpiRanks, TrainLikePlainLibTorch) {
  expect_training_equals_plain(GetParam(), mpi_job());
}

INSTANTIATE_TEST_SUITE_P(Mpi, ExamplesOnMpiRanks, ::testing::ValuesIn(example_trainings()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shard::testing
