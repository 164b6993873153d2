// SPDX-License-Identifier: Apache-2.0
// Unmodified torch::nn modules on ShardTensors: forward, all gradients and a gradient penalty.
#include <gtest/gtest.h>
#include <shard/shard.h>
#include <torch/torch.h>

#include "support/network_check.h"

namespace shard::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding));
}

class Networks : public ::testing::TestWithParam<int> {};

TEST_P(Networks, EqualPlainLibTorchForEveryCut) {
  for (const auto& network : networks()) {
    run_ranks(GetParam(), [&](World& world) { expect_network_equals_plain(network, world); });
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, Networks, ::testing::Values(1, 2, 3, 4));

struct TokenBlock : ::testing::TestWithParam<Partition> {};

TEST_P(TokenBlock, CommunicatesOncePerWeightInTheBackwardAndNeverForward) {
  const Partition& partition = GetParam();
  const int ranks = static_cast<int>(partition.size());
  run_ranks(ranks, [&](World& world) {
    nn::Sequential net(nn::LayerNorm(nn::LayerNormOptions({16})), nn::Linear(16, 32), nn::GELU(),
                       nn::Linear(32, 16));
    const auto mesh = world.mesh();
    const auto x = scatter_tensor(torch::randn({1, 10, 16}), 0, mesh, {Shard(1)}, partition);
    mesh.comm().barrier();
    const auto sent_before = mesh.comm().bytes_sent();
    const CommCounter forward;
    const auto y = net->forward(x);
    EXPECT_EQ(forward.calls(), 0) << forward.table();
    const CommCounter backward;
    y.sum().backward();
    EXPECT_LE(backward.calls(), static_cast<int64_t>(net->parameters().size())) << backward.table();
    EXPECT_EQ(backward.calls(), backward.calls("all_reduce")) << backward.table();
    const auto counted = backward.bytes();
    EXPECT_GT(counted, 0);
    mesh.comm().barrier();
    EXPECT_EQ(mesh.comm().bytes_sent() - sent_before, counted) << backward.table();
  });
}
INSTANTIATE_TEST_SUITE_P(Cuts, TokenBlock,
                         ::testing::Values(Partition{5, 5}, Partition{7, 3}, Partition{10, 0},
                                           Partition{4, 0, 6}));

TEST(Convolution, ExchangesOnceForward) {
  run_ranks(2, [](World& world) {
    auto net = conv(2, 2, 3, 1, 1);
    const auto x = scatter_tensor(torch::randn({1, 2, 10, 8}), 0, world.mesh(), {Shard(2)});
    const CommCounter counter;
    net->forward(x);
    EXPECT_EQ(counter.calls(), 1) << counter.table();
    EXPECT_EQ(counter.calls("exchange"), 1) << counter.table();
  });
}

}  // namespace
}  // namespace shard::testing
