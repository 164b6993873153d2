// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor x(at::ScalarType dtype = at::kFloat) { return torch::randn({2, 6, 8, 3}, dtype); }
at::Tensor per_channel(int64_t channels = 6) { return torch::randn({channels}); }

Function norm(int64_t groups) {
  return [groups](const Tensors& t) {
    return at::group_norm(t[0], groups, t.size() > 1 ? t[1] : at::Tensor(),
                          t.size() > 2 ? t[2] : at::Tensor());
  };
}

std::vector<Sample> cases() {
  torch::manual_seed(10);
  const auto channels_last = x().contiguous(c10::MemoryFormat::ChannelsLast);
  return {
      {"sharded_in_space",
       {sharded(x(), 2), weight(per_channel()), weight(per_channel())},
       norm(3)},
      {"sharded_in_the_last_dim",
       {sharded(torch::randn({2, 6, 3, 8}), 3), weight(per_channel()), weight(per_channel())},
       norm(2)},
      {"sharded_in_the_batch",
       {sharded(torch::randn({8, 6, 3}), 0), weight(per_channel()), weight(per_channel())},
       norm(3)},
      {"sharded_in_channels",
       {sharded(torch::randn({2, 8, 3, 4}), 1), weight(per_channel(8)), weight(per_channel(8))},
       norm(8)},
      {"sharded_in_channels_through_groups",
       {sharded(torch::randn({2, 8, 3, 4}), 1), weight(per_channel(8)), weight(per_channel(8))},
       norm(2)},
      {"sharded_in_channels_without_space",
       {sharded(torch::randn({3, 8}), 1), weight(per_channel(8)), weight(per_channel(8))},
       norm(2)},
      {"without_weight_and_bias", {sharded(x(), 2)}, norm(3)},
      {"without_bias", {sharded(x(), 2), weight(per_channel())}, norm(1)},
      {"with_constant_weights",
       {sharded(x(), 2), constant(per_channel()), constant(per_channel())},
       norm(6)},
      {"of_a_constant_input",
       {constant(x(), 2), weight(per_channel()), weight(per_channel())},
       norm(3)},
      {"in_double_precision",
       {sharded(x(at::kDouble), 2), weight(torch::randn({6}, at::kDouble)),
        weight(torch::randn({6}, at::kDouble))},
       norm(3)},
      {"of_volumes",
       {sharded(torch::randn({1, 4, 3, 8, 2}), 3), weight(per_channel(4)), weight(per_channel(4))},
       norm(2)},
      {"of_signals",
       {sharded(torch::randn({2, 4, 8}), 2), weight(per_channel(4)), weight(per_channel(4))},
       norm(2)},
      {"in_channels_last_format",
       {sharded(channels_last, 2), weight(per_channel()), weight(per_channel())},
       norm(3)},
      {"of_one_sample_and_group", {sharded(torch::randn({1, 1, 8}), 2)}, norm(1)},
      {"of_long_rows",
       {sharded(torch::randn({1, 2, 8, 1000}), 2), weight(per_channel(2)), weight(per_channel(2))},
       norm(1)},
      {"twice_with_an_activation",
       {sharded(x(), 2), weight(per_channel()), weight(per_channel())},
       [](const Tensors& t) {
         return at::group_norm(at::silu(at::group_norm(t[0], 3, t[1], t[2])), 2, t[1], t[2]);
       }},
  };
}

SHARD_SAMPLES(GroupNorm, with_traffic(cases(), {{"sharded_in_channels_through_groups", 2.5}}));

/// Any number of groups, spatial dims and batches, with and without weights.
Sample random_sample(Random& r) {
  const int64_t groups = r.integer(1, 3);
  auto sizes = r.sizes(r.integer(3, 5), 1, 6);
  sizes[1] = groups * r.integer(1, 3);
  sizes[2] = r.integer(2, 9);
  const int64_t dim = r.integer(0, static_cast<int64_t>(sizes.size()) - 1);
  std::vector<Input> inputs{sharded(r.tensor(sizes), dim)};
  const bool has_weights = r.coin();
  if (has_weights) inputs.push_back(weight(r.tensor({sizes[1]})));
  if (has_weights) inputs.push_back(weight(r.tensor({sizes[1]})));
  const Function function = [=](const Tensors& t) {
    return at::group_norm(t[0], groups, has_weights ? t[1] : at::Tensor(),
                          has_weights ? t[2] : at::Tensor(), 1e-2);
  };
  Check check;
  if (dim == 1) {
    check.traffic = 5.5;
    check.holds_whole = "thousands of channels of a few elements: statistics are as large";
  }
  return {"random", inputs, function, check};
}
SHARD_RANDOM_SAMPLES(RandomGroupNorm, random_sample);

/// The error of float32 against float64, of the plain and of the sharded op.
std::pair<double, double> errors(double mean, World& world) {
  torch::manual_seed(11);
  const auto x64 = torch::randn({2, 4, 64, 6}, at::kDouble) + mean;
  const auto want = at::group_norm(x64, 2);
  const auto x32 = x64.to(at::kFloat);
  const auto exact = at::group_norm(x32.to(at::kDouble), 2);
  const auto sharded = scatter_tensor(x32, 0, world.mesh(), {Shard(2)}, {40, 0, 24});
  const auto got = ShardTensor(at::group_norm(sharded, 2)).full();
  return {relative_error(at::group_norm(x32, 2).to(at::kDouble), exact),
          relative_error(got.to(at::kDouble), exact)};
}

TEST(GroupNorm, IsAsExactAsThePlainOneWhenTheMeanIsLarge) {
  for (const double mean : {0.0, 1e3, 1e4}) {
    run_ranks(3, [&](World& world) {
      const auto [plain, sharded] = errors(mean, world);
      EXPECT_LE(sharded, 2 * plain + 1e-6) << "mean " << mean;
    });
  }
}

TEST(GroupNorm, SendsOneMessageForwardAndOneBackward) {
  run_ranks(3, [](World& world) {
    auto t = scatter_tensor(x(), 0, world.mesh(), {Shard(2)}).set_requires_grad(true);
    const auto w = per_channel().requires_grad_();
    const auto b = per_channel().requires_grad_();
    const CommCounter forward;
    const auto y = at::group_norm(t, 3, w, b);
    EXPECT_EQ(forward.calls(), 1) << forward.table();
    const auto cotangent = torch::ones_like(y);
    const CommCounter backward;
    y.backward(cotangent);
    EXPECT_EQ(backward.calls(), 1) << backward.table();
    EXPECT_TRUE(w.grad().defined() && b.grad().defined());
  });
}

TEST(GroupNorm, OfABatchShardSendsNothingForward) {
  run_ranks(2, [](World& world) {
    const auto t = scatter_tensor(x(), 0, world.mesh(), {Shard(0)});
    const CommCounter counter;
    at::group_norm(t, 3, per_channel(), per_channel());
    EXPECT_EQ(counter.calls(), 0) << counter.table();
  });
}

TEST(GroupNorm, KeepsTheShardInSpace) {
  run_ranks(3, [](World& world) {
    const auto t = scatter_tensor(x(), 0, world.mesh(), {Shard(2)}, {5, 0, 3});
    EXPECT_EQ(ShardTensor(at::group_norm(t, 3)).spec(), ShardTensor(t).spec());
  });
}

TEST(GroupNorm, OfAPendingSumReducesItFirst) {
  run_ranks(2, [](World& world) {
    torch::manual_seed(5);
    const auto whole = x();
    const auto mine = world.rank() == 0 ? whole * 3 : whole * -2;
    const auto y = at::group_norm(from_local(mine, world.mesh(), {Partial()}), 2);
    EXPECT_LE(relative_error(ShardTensor(y).full(), at::group_norm(whole, 2)), 1e-5);
  });
}

TEST(GroupNorm, RefusesAWeightOfTheWrongSizeOnEveryRank) {
  run_ranks(2, [](World& world) {
    const auto t = scatter_tensor(x(), 0, world.mesh(), {Shard(2)});
    EXPECT_THROW(at::group_norm(t, 3, per_channel(5)), SpecMismatch);
    EXPECT_THROW(at::group_norm(t, 4), SpecMismatch);
  });
}

TEST(GroupNorm, InReducedPrecisionEqualsThePlainOne) {
  run_ranks(2, [](World& world) {
    torch::manual_seed(5);
    const auto whole = x().to(at::kBFloat16);
    const auto y = at::group_norm(scatter_tensor(whole, 0, world.mesh(), {Shard(2)}), 3);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_LE(relative_error(ShardTensor(y).full(), at::group_norm(whole, 3)), 1e-2);
  });
}

TEST(GroupNorm, ModuleTrainsUnchanged) {
  torch::manual_seed(12);
  const auto whole = x();
  torch::nn::GroupNorm plain(torch::nn::GroupNormOptions(3, 6));
  plain->forward(whole).pow(3).sum().backward();
  run_ranks(2, [&](World& world) {
    torch::nn::GroupNorm module(torch::nn::GroupNormOptions(3, 6));
    module->forward(scatter_tensor(whole, 0, world.mesh(), {Shard(2)}, {7, 1}))
        .pow(3)
        .sum()
        .backward();
    EXPECT_LE(relative_error(module->weight.grad(), plain->weight.grad()), 1e-5);
    EXPECT_LE(relative_error(module->bias.grad(), plain->bias.grad()), 1e-5);
  });
}

}  // namespace
}  // namespace shard::testing
