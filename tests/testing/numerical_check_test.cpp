// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/handlers.h>
#include <shard/shard.h>
#include <shard/testing.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

using ::testing::HasSubstr;

torch::nn::Sequential network() {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3).padding(1)),
                               torch::nn::Tanh(),
                               torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 1, 3)));
}

TEST(NumericalCheck, PassesAnUnmodifiedModule) {
  run_ranks(3, [](World& world) {
    auto net = network();
    const auto mesh = world.mesh();
    const auto x = scatter_tensor(torch::randn({1, 2, 11, 6}), 0, mesh, {Shard(2)}, {1, 7, 3});
    const auto report = numerical_shard_tensor_check(mesh, net, {x});
    EXPECT_TRUE(report.ok()) << report.text();
    EXPECT_EQ(report.equal, 1);
    EXPECT_FALSE(net->parameters()[0].grad().defined());
  });
}

TEST(NumericalCheck, SaysOnEveryRankWhatDiffers) {
  run_ranks(2, [](World& world) {
    const auto broken = register_function_handler<at::_ops::tanh>(+[](const at::Tensor& x) {
      return from_local(to_local(x).tanh() * 1.01, mesh_of(x), spec_of(x));
    });
    auto net = network();
    const auto mesh = world.mesh();
    const auto x = scatter_tensor(torch::randn({1, 2, 11, 6}), 0, mesh, {Shard(2)});
    const auto report = numerical_shard_tensor_check(mesh, net, {x});
    EXPECT_EQ(report.failures.size(), 2U);
    EXPECT_THAT(report.text(), HasSubstr("output differs by"));
    EXPECT_THAT(report.text(), HasSubstr("gradient of differentiable input 1 differs"));
  });
}

struct GateImpl : torch::nn::Module {
  GateImpl()
      : of_a(register_module("of_a", torch::nn::Linear(3, 2))),
        of_b(register_module("of_b", torch::nn::Linear(4, 2))) {}
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
    return of_a(a) * of_b(b).sigmoid();
  }
  torch::nn::Linear of_a, of_b;
};
TORCH_MODULE(Gate);

TEST(NumericalCheck, TakesModulesOfSeveralInputs) {
  run_ranks(2, [](World& world) {
    Gate gate;
    const auto mesh = world.mesh();
    const auto a = scatter_tensor(torch::randn({7, 3}), 0, mesh, {Shard(0)});
    const auto b = scatter_tensor(torch::randn({7, 4}), 0, mesh, {Shard(0)});
    const auto report = numerical_shard_tensor_check<2>(mesh, gate, {a, b});
    EXPECT_TRUE(report.ok()) << report.text();
  });
}

}  // namespace
}  // namespace shard::testing
