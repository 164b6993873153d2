// SPDX-License-Identifier: Apache-2.0
// Mixed precision: networks under autocast give the dtypes, values and gradients of plain LibTorch
// under autocast.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <shard/shard.h>
#include <shard/testing.h>
#include <torch/torch.h>

#include "support/network_check.h"

namespace shard::testing {
namespace {

using at::Tensor;

struct AutocastScope {
  AutocastScope() {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
};

/// Output, loss and gradients (input, weights) of a forward under autocast, twice: the second time
/// the net's weights come from autocast's cache.
std::vector<Tensor> step(torch::nn::Sequential net, Tensor x) {
  x.requires_grad_();
  Tensor y, loss;
  {
    const AutocastScope autocast;
    net->forward(x);
    y = net->forward(x);
    loss = torch::mse_loss(y, y.detach().cos());
  }
  loss.backward();
  std::vector<Tensor> result{y.detach(), loss.detach(), x.grad()};
  for (const auto& p : net->parameters()) result.push_back(p.grad());
  net->zero_grad();
  return result;
}

class Autocast : public ::testing::TestWithParam<Network> {};

TEST_P(Autocast, GivesDtypesValuesAndGradientsOfPlainAutocast) {
  const Network& network = GetParam();
  const int64_t rows = network.input[static_cast<size_t>(network.shard_dim)];
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const auto& [name, partition] : splits(rows, ranks)) {
      run_ranks(ranks, [&, split = name, cut = partition](World& world) {
        manual_seed(7);
        auto net = network.make();
        const Tensor whole = torch::randn(network.input);
        const auto want = step(net, whole.clone());
        const auto got =
            step(net, scatter_tensor(whole, 0, world.mesh(), {Shard(network.shard_dim)}, cut));
        for (size_t i = 0; i < want.size(); ++i) {
          const Tensor value = is_shard_tensor(got[i]) ? ShardTensor(got[i]).full() : got[i];
          EXPECT_EQ(value.scalar_type(), want[i].scalar_type()) << split << ' ' << i;
          // bf16 has eight bits: sums differ by some of them.
          EXPECT_LE(relative_error(value.to(at::kDouble), want[i].to(at::kDouble)), 0.04)
              << split << ' ' << i;
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dispatch, Autocast, ::testing::ValuesIn(networks()),
                         [](const auto& info) { return "net" + std::to_string(info.index); });

TEST(AutocastDtypes, AreBf16ForOutputsAndFloatForGradients) {
  run_ranks(2, [](World& world) {
    Tensor x = scatter_tensor(torch::randn({1, 2, 8, 8}), 0, world.mesh(), {Shard(2)});
    x.set_requires_grad(true);
    torch::nn::Conv2d conv(torch::nn::Conv2dOptions(2, 3, 3).padding(1));
    const Tensor y = [&] {
      const AutocastScope autocast;
      return conv->forward(x);
    }();
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.to(at::kFloat).sum().backward();
    EXPECT_EQ(conv->weight.grad().scalar_type(), at::kFloat);
    EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  });
}

}  // namespace
}  // namespace shard::testing
