// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/comm_counter.h>
#include <shard/launch.h>
#include <torch/types.h>

namespace shard::testing {
namespace {

using ::testing::HasSubstr;

void reduce(const Communicator& comm, int64_t count) {
  torch::Tensor tensor = torch::ones({count});
  comm.all_reduce(tensor);
}

TEST(CommCounter, CountsByKindMeshDimAndLabel) {
  run_ranks(2, [](World& world) {
    const DeviceMesh mesh = world.mesh();
    const CommCounter counter;
    reduce(mesh.comm(), 10);
    {
      const CommLabel outer("conv2d");
      reduce(mesh.comm(), 10);
      {
        const CommLabel inner("halo");
        mesh.comm().barrier();
      }
      reduce(mesh.comm(), 10);
    }
    const auto counts = counter.counts();
    ASSERT_EQ(counts.size(), 3u);
    EXPECT_EQ(counts.at({"all_reduce", "domain", ""}).bytes, 40);
    EXPECT_EQ(counts.at({"all_reduce", "domain", "conv2d"}).calls, 2);
    EXPECT_EQ(counts.at({"barrier", "domain", "halo"}).calls, 1);
    EXPECT_EQ(counter.calls(), 4);
    EXPECT_EQ(counter.calls("all_reduce"), 3);
    EXPECT_EQ(counter.bytes(), 120);
    EXPECT_EQ(counter.bytes("barrier"), 0);
  });
}

TEST(CommCounter, CountsFromWhereItWasOpened) {
  run_ranks(2, [](World& world) {
    reduce(world.comm(), 10);
    const CommCounter counter;
    EXPECT_EQ(counter.calls(), 0);
    EXPECT_TRUE(counter.counts().empty());
    reduce(world.comm(), 10);
    EXPECT_EQ(counter.calls(), 1);
  });
}

TEST(CommCounter, LeavesOutASingleRank) {
  run_ranks(1, [](World& world) {
    const CommCounter counter;
    reduce(world.comm(), 10);
    world.comm().barrier();
    EXPECT_EQ(counter.calls(), 0);
  });
}

TEST(CommCounter, CountsEveryRankApart) {
  run_ranks(3, [](World& world) {
    const CommCounter counter;
    torch::Tensor tensor = torch::ones({10});
    world.comm().broadcast(tensor, 1);
    EXPECT_EQ(counter.bytes(), world.rank() == 1 ? 80 : 0);
  });
}

TEST(CommCounter, PrintsATableAndJson) {
  run_ranks(2, [](World& world) {
    const CommCounter counter;
    const CommLabel label("a \"label\"");
    reduce(world.comm(), 10);
    EXPECT_THAT(counter.table(), HasSubstr("all_reduce"));
    EXPECT_EQ(counter.json(), R"([{"kind": "all_reduce", "dim": "world", "label": "a \"label\"", )"
                              R"("calls": 1, "bytes": 40}])");
  });
}

}  // namespace
}  // namespace shard::testing
