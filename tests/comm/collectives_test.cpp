// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <shard/launch.h>

#include "support/collective_cases.h"

namespace shard::testing {
namespace {

class OnThreadRanks : public ::testing::TestWithParam<std::tuple<int, CollectiveCase>> {};

TEST_P(OnThreadRanks, Do) {
  const auto& [ranks, collective] = GetParam();
  run_ranks(ranks, [&](World& world) { collective.run(world.comm()); });
}

// A sub-communicator must do all that the world does.
TEST_P(OnThreadRanks, DoOnASubMesh) {
  const auto& [ranks, collective] = GetParam();
  run_ranks(2 * ranks, [&](World& world) {
    const DeviceMesh mesh = world.mesh({{"domain", -1}, {"ddp", 2}});
    collective.run(mesh.comm("domain"));
  });
}

INSTANTIATE_TEST_SUITE_P(Comm, OnThreadRanks,
                         ::testing::Combine(::testing::Range(1, 5),
                                            ::testing::ValuesIn(collective_cases())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + "_on_" +
                                  std::to_string(std::get<0>(info.param));
                         });

}  // namespace
}  // namespace shard::testing
