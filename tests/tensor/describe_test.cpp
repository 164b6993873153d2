// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <shard/describe.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <torch/types.h>

namespace shard::testing {
namespace {

TEST(Describe, DrawsRanksAndRows) {
  run_ranks(3, [](World& world) {
    const auto x = scatter_tensor(torch::ones({2, 6}), 0, world.mesh(), {Shard(1)}, {4, 0, 2});
    EXPECT_EQ(describe(x),
              "Float [2, 6] on ('domain': 3), placements (Shard(1))\n"
              "  rank 0  at (0)  dim 1: rows 0..3 of 6\n"
              "  rank 1  at (1)  dim 1: no rows of 6\n"
              "  rank 2  at (2)  dim 1: rows 4..5 of 6");
  });
}

TEST(Describe, DrawsGrids) {
  run_ranks(4, [](World& world) {
    const auto mesh = world.mesh({{"ddp", 2}, {"domain", 2}});
    const auto x = scatter_tensor(torch::ones({3, 4}), 0, mesh, {Replicate(), Shard(0)});
    EXPECT_EQ(describe(x),
              "Float [3, 4] on ('ddp': 2, 'domain': 2), placements (Replicate, Shard(0))\n"
              "  rank 0  at (0, 0)  dim 0: rows 0..1 of 3\n"
              "  rank 1  at (0, 1)  dim 0: rows 2..2 of 3\n"
              "  rank 2  at (1, 0)  dim 0: rows 0..1 of 3\n"
              "  rank 3  at (1, 1)  dim 0: rows 2..2 of 3");
    const auto sum = scatter_tensor(torch::ones({3, 4}), 0, world.mesh(), {Shard(0)}).sum(0);
    EXPECT_NE(describe(sum).find("a contribution (Partial(sum))  the whole"), std::string::npos)
        << describe(sum);
  });
}

TEST(Describe, TakesPlainTensorsToo) {
  EXPECT_EQ(describe(torch::ones({2, 6})), "plain Float [2, 6]");
  EXPECT_EQ(describe(at::Tensor()), "an undefined tensor");
}

}  // namespace
}  // namespace shard::testing
