// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor x(at::ScalarType dtype = at::kFloat) { return torch::randn({2, 8, 5}, dtype); }
at::Tensor parameter(std::vector<int64_t> sizes, at::ScalarType dtype = at::kFloat) {
  return torch::randn(sizes, dtype);
}

Function norm(std::vector<int64_t> shape) {
  return [shape](const Tensors& t) {
    return at::layer_norm(t[0], shape, t.size() > 1 ? t[1] : at::Tensor(),
                          t.size() > 2 ? t[2] : at::Tensor());
  };
}

/// Results and statistics of the op below, in one tensor.
Function norm_with_statistics(std::vector<int64_t> shape) {
  return [shape](const Tensors& t) {
    const auto [y, mean, inverse] = at::native_layer_norm(
        t[0], shape, t.size() > 1 ? t[1] : at::Tensor(), t.size() > 2 ? t[2] : at::Tensor(), 1e-5);
    return y * (mean + 2) + inverse;
  };
}

std::vector<Sample> cases() {
  torch::manual_seed(20);
  return {
      {"over_the_last_dim_of_sharded_tokens",
       {sharded(x(), 1), weight(parameter({5})), weight(parameter({5}))},
       norm({5})},
      {"over_the_sharded_last_dim",
       {sharded(torch::randn({2, 3, 8}), 2), weight(parameter({8})), weight(parameter({8}))},
       norm({8})},
      {"over_two_dims_of_which_the_first_is_sharded",
       {sharded(x(), 1), weight(parameter({8, 5})), weight(parameter({8, 5}))},
       norm({8, 5})},
      {"over_two_dims_of_a_batch_shard",
       {sharded(torch::randn({8, 3, 2}), 0), weight(parameter({3, 2})), weight(parameter({3, 2}))},
       norm({3, 2})},
      {"over_everything",
       {sharded(torch::randn({8, 3}), 0), weight(parameter({8, 3})), weight(parameter({8, 3}))},
       norm({8, 3})},
      {"without_weights", {sharded(x(), 1)}, norm({5})},
      {"over_the_sharded_dim_without_weights", {sharded(x(), 1)}, norm({8, 5})},
      {"without_bias", {sharded(x(), 1), weight(parameter({8, 5}))}, norm({8, 5})},
      {"in_double_precision",
       {sharded(x(at::kDouble), 1), weight(parameter({5}, at::kDouble)),
        weight(parameter({5}, at::kDouble))},
       norm({5})},
      {"over_the_sharded_dim_in_double_precision",
       {sharded(x(at::kDouble), 1), weight(parameter({8, 5}, at::kDouble)),
        weight(parameter({8, 5}, at::kDouble))},
       norm({8, 5})},
      {"with_statistics",
       {sharded(x(at::kDouble), 1), weight(parameter({5}, at::kDouble)),
        weight(parameter({5}, at::kDouble))},
       norm_with_statistics({5})},
      {"with_statistics_over_the_sharded_dim",
       {sharded(x(at::kDouble), 1), weight(parameter({8, 5}, at::kDouble)),
        weight(parameter({8, 5}, at::kDouble))},
       norm_with_statistics({8, 5})},
      {"with_statistics_without_weights", {sharded(x(), 2)}, norm_with_statistics({5})},
  };
}

SHARD_SAMPLES(LayerNorm, cases());

/// Any number of normalised dims, with and without weights.
Sample random_sample(Random& r) {
  auto sizes = r.sizes(r.integer(1, 4), 1, 7);
  sizes.back() = r.integer(2, 7);
  const auto ndim = static_cast<int64_t>(sizes.size());
  const int64_t normalised = r.integer(1, ndim);
  const std::vector<int64_t> shape(sizes.end() - normalised, sizes.end());
  std::vector<Input> inputs{sharded(r.tensor(sizes), r.integer(0, ndim - 1))};
  const bool has_weights = r.coin();
  if (has_weights) inputs.push_back(weight(r.tensor(shape)));
  if (has_weights) inputs.push_back(weight(r.tensor(shape)));
  return {"random", inputs, [=](const std::vector<at::Tensor>& t) {
            return at::layer_norm(t[0], shape, has_weights ? t[1] : at::Tensor(),
                                  has_weights ? t[2] : at::Tensor(), 1e-2);
          }};
}
SHARD_RANDOM_SAMPLES(RandomLayerNorm, random_sample);

TEST(LayerNorm, OfTokensSendsNothingForwardAndOneMessageBackward) {
  run_ranks(3, [](World& world) {
    const auto t = scatter_tensor(x(), 0, world.mesh(), {Shard(1)}).set_requires_grad(true);
    const auto w = torch::ones({5}).requires_grad_();
    const auto b = torch::zeros({5}).requires_grad_();
    const CommCounter forward;
    const auto y = at::layer_norm(t, {5}, w, b);
    EXPECT_EQ(forward.calls(), 0) << forward.table();
    const auto cotangent = torch::ones_like(y);
    const CommCounter backward;
    y.backward(cotangent);
    EXPECT_EQ(backward.calls(), 1) << backward.table();
  });
}

TEST(LayerNorm, OverTheShardSendsOneMessageForward) {
  run_ranks(3, [](World& world) {
    const auto t = scatter_tensor(x(), 0, world.mesh(), {Shard(1)});
    const CommCounter counter;
    at::layer_norm(t, {8, 5});
    EXPECT_EQ(counter.calls(), 1) << counter.table();
  });
}

TEST(LayerNorm, OnOneRankIsThePlainOpBitForBit) {
  run_ranks(1, [](World& world) {
    torch::manual_seed(21);
    const auto whole = x();
    const auto w = parameter({5});
    const auto y = at::layer_norm(scatter_tensor(whole, 0, world.mesh(), {Shard(2)}), {5}, w);
    EXPECT_TRUE(torch::equal(ShardTensor(y).local(), at::layer_norm(whole, {5}, w)));
  });
}

}  // namespace
}  // namespace shard::testing
