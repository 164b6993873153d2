// SPDX-License-Identifier: Apache-2.0
// The box exchange: the rows of several cut dims at once, corners included.
#include <gtest/gtest.h>
#include <shard/launch.h>

#include "support/box_cases.h"

namespace shard::testing {
namespace {

void expect_boxes_on(const std::vector<MeshDim>& dims, int ranks) {
  run_ranks(ranks, [&](World& world) { expect_boxes(world.mesh(dims), 3, 40); });
}

TEST(BoxExchange, OnTwoByTwoRanks) { expect_boxes_on({{"a", 2}, {"b", 2}}, 4); }
TEST(BoxExchange, OnThreeByOneRanks) { expect_boxes_on({{"a", 3}, {"b", 1}}, 3); }
TEST(BoxExchange, OnTwoByOneByTwoRanks) { expect_boxes_on({{"a", 2}, {"b", 1}, {"c", 2}}, 4); }
TEST(BoxExchange, OnTwoByTwoByTwoRanks) { expect_boxes_on({{"a", 2}, {"b", 2}, {"c", 2}}, 8); }

}  // namespace
}  // namespace shard::testing
