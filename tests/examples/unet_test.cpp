// SPDX-License-Identifier: Apache-2.0
#include <global_field/unet.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace global_field {
namespace {

using torch::Tensor;

Tensor randomised_forward(UNet& net, const Tensor& x) {
  const torch::NoGradGuard no_grad;
  return net->forward(x);
}

UNet trained_looking_net() {
  torch::manual_seed(1);
  UNet net(6, 4, 2);
  net->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  for (Tensor& weight : net->parameters()) weight.add_(torch::randn_like(weight) * 0.1);
  return net;
}

TEST(UNetTest, StartsAsPersistence) {
  UNet net(6, 4, 2);
  const Tensor x = torch::randn({1, 6, 16, 32});
  EXPECT_TRUE(randomised_forward(net, x).equal(x.narrow(1, 2, 1)));
}

TEST(UNetTest, TakesAnySizeFromEightUp) {
  UNet net(6, 4, 2);
  for (const auto& [height, width] : {std::pair{8, 8}, {9, 18}, {17, 33}, {27, 54}}) {
    EXPECT_EQ(randomised_forward(net, torch::randn({1, 6, height, width})).sizes(),
              (std::vector<int64_t>{1, 1, height, width}));
  }
}

TEST(GlobeConvTest, TurningTheGlobeTurnsTheResult) {
  torch::manual_seed(1);
  GlobeConv conv(3, 2);
  conv->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  const Tensor x = torch::randn({1, 3, 5, 12}, torch::kFloat64);
  const Tensor straight = conv->forward(x);
  EXPECT_EQ(straight.sizes(), (std::vector<int64_t>{1, 2, 5, 12}));
  for (int64_t turn = 1; turn < 12; ++turn) {
    const Tensor turned = conv->forward(x.roll({turn}, {3}));
    EXPECT_TRUE(turned.allclose(straight.roll({turn}, {3}), 1e-12, 1e-12)) << turn;
  }
}

TEST(UNetTest, TurningTheGlobeTurnsThePrediction) {
  UNet net = trained_looking_net();
  const Tensor x = torch::randn({1, 6, 19, 48}, torch::kFloat64);
  const Tensor straight = randomised_forward(net, x);
  for (int64_t turn = 8; turn < 48; turn += 8) {
    const Tensor turned = randomised_forward(net, x.roll({turn}, {3}));
    EXPECT_TRUE(turned.allclose(straight.roll({turn}, {3}), 1e-10, 1e-10)) << turn;
  }
}

TEST(UNetTest, EveryWeightGetsAGradient) {
  UNet net = trained_looking_net();
  const Tensor x = torch::randn({1, 6, 16, 32}, torch::kFloat64);
  net->forward(x).square().mean().backward();
  for (const auto& weight : net->named_parameters()) {
    EXPECT_GT(weight.value().grad().abs().max().item<double>(), 0) << weight.key();
  }
}

}  // namespace
}  // namespace global_field
