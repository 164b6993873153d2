// SPDX-License-Identifier: Apache-2.0
#include "support/network_check.h"

#include <gtest/gtest.h>
#include <shard/shard.h>
#include <torch/torch.h>

#include <mutex>

#include "support/sharded_check.h"

namespace shard::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;

struct Outcome {
  Tensor output, input_gradient;
  std::vector<Tensor> weight_gradients, penalty_gradients;
};

Tensor full(const Tensor& t) {
  const at::NoGradGuard guard;
  return t.defined() && is_shard_tensor(t) ? ShardTensor(t).full() : t;
}

std::vector<Tensor> take_gradients(nn::Sequential& net) {
  std::vector<Tensor> result;
  for (auto& p : net->parameters()) {
    result.push_back(p.grad());
    p.mutable_grad().reset();
  }
  return result;
}

Outcome train(nn::Sequential net, Tensor x) {
  x.requires_grad_();
  Outcome result;
  const Tensor y = net->forward(x);
  result.output = full(y.detach());
  const Tensor loss = torch::mse_loss(y, y.detach().cos());
  const auto g = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
  result.input_gradient = full(g.detach());
  loss.backward({}, true);
  result.weight_gradients = take_gradients(net);
  (g * g).sum().backward();
  result.penalty_gradients = take_gradients(net);
  return result;
}

nn::Sequential copy_of(const Network& network, nn::Sequential& reference) {
  auto net = network.make();
  net->to(reference->parameters()[0].device(), at::kDouble);
  const torch::NoGradGuard guard;
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    net->parameters()[i].copy_(reference->parameters()[i]);
  }
  return net;
}

void expect_equal(const std::vector<Tensor>& got, const std::vector<Tensor>& want, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_FALSE(got[i].defined() && is_shard_tensor(got[i])) << what << " " << i;
    EXPECT_LE(relative_error(got[i], want[i]), tolerance) << what << " " << i;
  }
}

void compare(const Outcome& got, const Outcome& want) {
  EXPECT_LE(relative_error(got.output, want.output), 1e-9);
  EXPECT_LE(relative_error(got.input_gradient, want.input_gradient), 1e-9);
  expect_equal(got.weight_gradients, want.weight_gradients, 1e-9, "weight gradient");
  expect_equal(got.penalty_gradients, want.penalty_gradients, 1e-8, "penalty gradient");
}

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding));
}

nn::Upsample upsample() {
  return nn::Upsample(nn::UpsampleOptions()
                          .scale_factor(std::vector<double>{2, 2})
                          .mode(torch::kBilinear)
                          .align_corners(false));
}

nn::LayerNorm layer_norm() { return nn::LayerNorm(nn::LayerNormOptions({6})); }

nn::Sequential encoder_decoder() {
  return nn::Sequential(conv(2, 4, 3, 1, 1), nn::GroupNorm(nn::GroupNormOptions(2, 4)), nn::GELU(),
                        nn::AvgPool2d(nn::AvgPool2dOptions(2)), conv(4, 4, 3, 2, 1), nn::SiLU(),
                        upsample(), conv(4, 2, 5, 1, 2), nn::Tanh());
}

nn::Sequential strided() {
  return nn::Sequential(conv(2, 4, 3, 1, 1), nn::Sigmoid(),
                        nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)),
                        conv(4, 3, 2, 2, 0));
}

nn::Sequential across_width() {
  return nn::Sequential(conv(2, 4, 3, 1, 1), nn::Tanh(), conv(4, 2, 3, 1, 0));
}

nn::Sequential tokens() {
  return nn::Sequential(layer_norm(), nn::Linear(6, 12), nn::GELU(), nn::Linear(12, 6),
                        layer_norm());
}

nn::Sequential signal() {
  return nn::Sequential(nn::Conv1d(nn::Conv1dOptions(2, 4, 3).padding(1)), nn::ELU(),
                        nn::Conv1d(nn::Conv1dOptions(4, 2, 4).stride(2).padding(1)));
}

nn::Sequential volume() {
  return nn::Sequential(nn::Conv3d(nn::Conv3dOptions(1, 2, 3).padding(1)), nn::Softplus(),
                        nn::Conv3d(nn::Conv3dOptions(2, 1, 3).padding(1)));
}

}  // namespace

const std::vector<Network>& networks() {
  static const std::vector<Network> list{
      {"convolutions, norm, pool, upsampling", encoder_decoder, {1, 2, 17, 8}, 2},
      {"max pool and strides", strided, {2, 2, 18, 9}, 2},
      {"cut along width", across_width, {2, 2, 7, 13}, 3},
      {"tokens", tokens, {2, 13, 6}, 1},
      {"one-dimensional", signal, {2, 2, 15}, 2},
      {"three-dimensional", volume, {1, 1, 9, 4, 5}, 2}};
  return list;
}

void expect_network_equals_plain(const Network& network, World& world) {
  manual_seed(3);
  auto reference = network.make();
  reference->to(world.device(), at::kDouble);
  const Tensor input = torch::randn(network.input, at::kDouble).to(world.device());
  const auto want = train(reference, input.clone());
  take_gradients(reference);
  const auto judge = [&](const std::string& how, const Tensor& x) {
    const auto got = train(copy_of(network, reference), x);
    static std::mutex mutex;  // gtest's traces and failures of thread ranks
    const std::lock_guard lock(mutex);
    SCOPED_TRACE(
        c10::str(network.name, ", ", world.size(), " ranks, ", how, ", rank ", world.rank()));
    compare(got, want);
  };
  const int64_t dim = network.shard_dim;
  for (const auto& [name, partition] : splits(input.size(dim), world.size())) {
    judge(name, scatter_tensor(input, 0, world.mesh(), {Shard(dim)}, partition));
  }
  if (world.size() != 4) return;
  const auto mesh = world.mesh({{"a", 2}, {"b", 2}});
  const int64_t other = dim == input.dim() - 1 ? dim - 1 : input.dim() - 1;
  for (const Placements& placements :
       {Placements{Shard(dim), Shard(other)}, {Shard(0), Shard(dim)}, {Shard(dim), Shard(dim)}}) {
    judge(c10::str("2x2 mesh ", placements), scatter_tensor(input, 0, mesh, placements));
  }
}

}  // namespace shard::testing
