// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/log.h>
#include <torch/torch.h>

#include <atomic>

namespace shard::testing {
namespace {

TEST(RunRanks, RunsTheBodyOncePerRank) {
  std::atomic<int> ranks{0};
  run_ranks(4, [&](World& world) {
    EXPECT_EQ(world.size(), 4);
    EXPECT_EQ(world.launcher(), Launcher::Threads);
    EXPECT_EQ(world.is_root(), world.rank() == 0);
    EXPECT_EQ(log_rank(), world.rank());
    ranks += 1 << world.rank();
  });
  EXPECT_EQ(ranks, 15);
  EXPECT_EQ(log_rank(), -1);
}

TEST(RunRanks, HandsTheCallersModesOn) {
  const torch::NoGradGuard no_grad;
  run_ranks(2, [](World&) { EXPECT_FALSE(torch::GradMode::is_enabled()); });
  const torch::InferenceMode inference;
  run_ranks(2, [](World&) { EXPECT_TRUE(torch::InferenceMode::is_enabled()); });
}

TEST(RunRanks, GivesARankOneIntraOpThreadAndRestoresTheCallers) {
  const int before = at::get_num_threads();
  run_ranks(2, [](World&) { EXPECT_EQ(at::get_num_threads(), 1); });
  LaunchOptions options;
  options.threads = 2;
  run_ranks(
      2, [](World&) { EXPECT_EQ(at::get_num_threads(), 2); }, options);
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(RunRanks, ComputesTheSameBitsOnSeveralRanksAsOnOne) {
  const auto step = [] {
    torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)),
                                torch::nn::ReLU(),
                                torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 1, 3)));
    const torch::Tensor x = torch::randn({2, 3, 40, 40}, torch::requires_grad());
    model->forward(x).square().mean().backward();
    return x.grad();
  };
  torch::Tensor expected;
  run_ranks(1, [&](World&) { expected = step(); });
  run_ranks(4, [&](World&) { EXPECT_TRUE(at::equal(step(), expected)); });
}

TEST(RunRanks, RefusesNoRanks) {
  EXPECT_THROW(run_ranks(0, [](World&) {}), ConfigError);
}

TEST(RunRanks, CanBeNestedAndRepeated) {
  for (int i = 0; i < 20; ++i) {
    run_ranks(2, [](World&) { run_ranks(2, [](World& inner) { inner.comm().barrier(); }); });
  }
}

TEST(RunRanks, PassesOnExceptionsOfAnyType) {
  EXPECT_THROW(run_ranks(2, [](World&) { throw 3; }), int);
}

}  // namespace
}  // namespace shard::testing
