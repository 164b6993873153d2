// SPDX-License-Identifier: Apache-2.0
// Moves between placements and halo exchanges, forward and backward, with processes as ranks.
#include <gtest/gtest.h>
#include <shard/launch.h>

#include "mpi_world.h"
#include "support/box_cases.h"
#include "support/halo_cases.h"
#include "support/redistribute_cases.h"

namespace shard::testing {
namespace {

DeviceMesh mesh_of(std::vector<MeshDim> dims) { return {mpi_world(), std::move(dims), c10::kCPU}; }
DeviceMesh line() { return mesh_of({{"domain", -1}}); }

TEST(RedistributeOnMpiRanks, EveryPairOfPlacementsKeepsTheValue) {
  expect_moves_keep_the_value(line());
}

TEST(RedistributeOnMpiRanks, BackwardIsTheExactAdjoint) {
  expect_backward_moves_are_adjoint(line());
}

TEST(RedistributeOnMpiRanks, DimsShorterThanTheMeshHaveValuesAndGradients) {
  expect_short_dims_move(line());
}

TEST(RedistributeOnMpiRanks, RandomWalksKeepTheValue) {
  expect_walks_keep_the_value(line(), 100);
  expect_walks_keep_the_value(mesh_of({{"a", 2}, {"b", -1}}), 100);
}

TEST(HaloExchangeOnMpiRanks, AnyRowsToAnyRankAndBack) {
  const auto mesh = line();
  for (const auto& halo : halo_cases(mpi_world().size())) {
    expect_wanted_rows(halo, mesh);
    expect_exact_adjoint(halo, mesh);
  }
}

TEST(BoxExchangeOnMpiRanks, AnyBoxToAnyRankAndBack) {
  expect_boxes(mesh_of({{"a", 2}, {"b", -1}}), 4, 20);
  expect_boxes(mesh_of({{"a", -1}, {"b", 1}, {"c", 2}}), 5, 20);
}

}  // namespace
}  // namespace shard::testing
