// SPDX-License-Identifier: Apache-2.0
// The networks of the thread ranks' test with processes as ranks.
#include <gtest/gtest.h>

#include "mpi_world.h"
#include "support/network_check.h"

namespace shard::testing {
namespace {

class NetworksOnMpiRanks : public ::testing::TestWithParam<Network> {};

TEST_P(NetworksOnMpiRanks, EqualPlainLibTorchForEveryCut) {
  expect_network_equals_plain(GetParam(), mpi_job());
}

INSTANTIATE_TEST_SUITE_P(Mpi, NetworksOnMpiRanks, ::testing::ValuesIn(networks()));

}  // namespace
}  // namespace shard::testing
