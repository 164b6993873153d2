// SPDX-License-Identifier: Apache-2.0
// Inputs that lie whole on every rank: nothing is counted once a rank, neither in values nor in the
// gradients of inputs and weights.
#include <gtest/gtest.h>
#include <shard/shard.h>
#include <shard/testing.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

namespace nn = torch::nn;

struct Net {
  const char* name;
  std::function<nn::Sequential()> make;
};

const std::vector<Net>& nets() {
  static const std::vector<Net> all{
      {"convolution",
       [] { return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(4, 2, 3).padding(1))); }},
      {"circular convolution",
       [] {
         return nn::Sequential(
             nn::Conv2d(nn::Conv2dOptions(4, 2, 3).padding(1).padding_mode(torch::kCircular)));
       }},
      {"group norm", [] { return nn::Sequential(nn::GroupNorm(nn::GroupNormOptions(2, 4))); }},
      {"batch norm",
       [] {
         return nn::Sequential(
             nn::BatchNorm2d(nn::BatchNorm2dOptions(4).track_running_stats(false)));
       }},
      {"layer norm",
       [] {
         return nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({8, 6})));
       }},
      {"instance norm",
       [] {
         return nn::Sequential(nn::InstanceNorm2d(nn::InstanceNorm2dOptions(4).affine(true)));
       }},
      {"linear", [] { return nn::Sequential(nn::Linear(6, 5), nn::GELU()); }},
      {"max pool", [] { return nn::Sequential(nn::MaxPool2d(2)); }},
      {"softmax", [] { return nn::Sequential(nn::Softmax(2)); }},
      {"upsampling",
       [] {
         return nn::Sequential(nn::Upsample(
             nn::UpsampleOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest)));
       }},
      {"mean",
       [] { return nn::Sequential(nn::Functional([](at::Tensor x) { return x.mean(2); })); }},
      {"loss",
       [] {
         return nn::Sequential(
             nn::Functional([](at::Tensor x) { return torch::mse_loss(x, x.detach() * 2); }));
       }},
      {"index",
       [] {
         return nn::Sequential(nn::Functional([](at::Tensor x) {
           return x.index_select(2, torch::tensor({5, 0, 5}, at::kLong));
         }));
       }},
  };
  return all;
}

TEST(ReplicatedInputs, GiveThePlainValuesAndGradients) {
  run_ranks(3, [](World& world) {
    manual_seed(3);
    const auto mesh = world.mesh();
    for (const auto& net : nets()) {
      auto module = net.make();
      module->to(at::kDouble);
      const auto x =
          scatter_tensor(torch::randn({2, 4, 8, 6}, at::kDouble), 0, mesh, {Replicate()});
      const auto report = numerical_shard_tensor_check(mesh, module, {x});
      EXPECT_TRUE(report.ok()) << net.name << "\n" << report.text();
    }
  });
}

}  // namespace
}  // namespace shard::testing
