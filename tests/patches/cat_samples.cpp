// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor x(int64_t channels = 3) { return torch::randn({2, channels, 8}); }

std::vector<Sample> cases() {
  torch::manual_seed(70);
  return {
      {"cat_of_channels",
       {sharded(x(3), 2), sharded(x(2), 2)},
       [](const Tensors& t) {
         return at::cat({t[0], t[1] * 2}, 1);
       }},
      {"cat_of_a_plain_tensor",
       {sharded(x(3), 2), weight(x(2))},
       [](const Tensors& t) {
         return at::cat({t[1], t[0] * 2}, 1);
       }},
      {"cat_of_different_shards",
       {sharded(torch::randn({8, 8}), 1), sharded(torch::randn({8, 8}), 1)},
       [](const Tensors& t) {
         return at::cat({t[0], t[1]}, 0);
       }},
      {"cat_in_the_batch",
       {sharded(x(), 2)},
       [](const Tensors& t) {
         return at::cat({t[0], t[0].sin()}, 0);
       }},
      {"cat_with_a_negative_dim",
       {sharded(torch::randn({2, 8, 3}), 1)},
       [](const Tensors& t) {
         return at::cat({t[0], t[0].sin()}, -1);
       }},
      {"cat_promotes_types",
       {sharded(x(3), 2), sharded(x(2), 2)},
       [](const Tensors& t) {
         return at::cat({t[0], t[1].to(at::kDouble)}, 1);
       },
       Check{.tolerance = 1e-5}},
      {"cat_with_a_legacy_empty_tensor",
       {sharded(x(), 2), constant(torch::empty({0}))},
       [](const Tensors& t) {
         return at::cat({t[1], t[0] * 2}, 1);
       }},
      {"stack_in_front",
       {sharded(x(), 2), sharded(x(), 2)},
       [](const Tensors& t) {
         return at::stack({t[0], t[1] * 2}, 0);
       }},
      {"along_the_sharded_dim",
       {sharded(x(), 2), sharded(x(), 2)},
       [](const Tensors& t) {
         return at::cat({t[0], t[1] * t[0], t[1]}, 2);
       }},
      {"along_the_sharded_dim_with_a_plain_tensor",
       {sharded(x(), 2), weight(x())},
       [](const Tensors& t) {
         return at::cat({t[1], t[0], t[1].sum(2, true)}, 2).square();
       }},
      {"along_the_sharded_dim_of_differently_cut_tensors",
       {sharded(x(), 2), sharded(x(), 1)},
       [](const Tensors& t) {
         return at::cat({t[0], t[1]}, 2).square();
       }},
      {"stack_behind",
       {sharded(x(), 2), weight(x())},
       [](const Tensors& t) {
         return at::stack({t[0], t[1]}, -1);
       }},
      {"stack_of_pending_sums",
       {sharded(x(), 2), sharded(x(), 2)},
       [](const Tensors& t) {
         return at::stack({t[0].sum(), t[1].mean()});
       }},
  };
}

SHARD_SAMPLES(Cat, with_traffic(cases(), {{"along_the_sharded_dim", 2.25}}));

/// Two to four tensors, also empty ones, one after the other or stacked.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 7);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t along = r.integer(0, last);
  const bool stacks = r.coin();
  std::vector<Input> inputs;
  for (int64_t i = r.integer(2, 4); i > 0; --i) {
    auto own = sizes;
    if (!stacks) own[static_cast<size_t>(along)] = r.integer(0, 6);
    inputs.push_back(r.integer(0, 3) == 0 && !inputs.empty()
                         ? weight(r.tensor(own))
                         : sharded(r.tensor(own), r.integer(0, last)));
  }
  const Function function = [=](const Tensors& t) {
    return stacks ? at::stack(t, along).square() : at::cat(t, along).square();
  };
  return {"random", inputs, function, Check{.traffic = 2.25}};
}
SHARD_RANDOM_SAMPLES(RandomCat, random_sample);

TEST(Cat, LinesUpSkipConnectionsWhoseBoundariesDiffer) {
  torch::manual_seed(71);
  const auto a = x(2);
  const auto b = x(3);
  run_ranks(3, [&](World& world) {
    const auto s =
        scatter_tensor(a, 0, world.mesh(), {Shard(2)}, {3, 3, 2}).set_requires_grad(true);
    const auto t =
        scatter_tensor(b, 0, world.mesh(), {Shard(2)}, {4, 2, 2}).set_requires_grad(true);
    const auto y = at::cat({s, t}, 1);
    EXPECT_LE(relative_error(ShardTensor(y).full(), at::cat({a, b}, 1)), 0);
    y.pow(2).sum().backward();
    EXPECT_EQ(ShardTensor(t.grad()).spec().partition(), (Partition{4, 2, 2}));
    EXPECT_LE(relative_error(ShardTensor(t.grad()).full(), 2 * b), 0);
  });
}

TEST(Cat, OfLikeShardsSendsNothing) {
  run_ranks(2, [](World& world) {
    const auto t = scatter_tensor(x(), 0, world.mesh(), {Shard(2)});
    const CommCounter counter;
    at::cat({t, t}, 1);
    EXPECT_EQ(counter.calls(), 0) << counter.table();
  });
}

TEST(Cat, AlongTheShardedDimMovesRowsInOneExchange) {
  run_ranks(3, [](World& world) {
    const auto whole = x();
    const auto t = scatter_tensor(whole, 0, world.mesh(), {Shard(2)}, {5, 0, 3});
    const CommCounter counter;
    const auto y = at::cat({t, t}, 2);
    EXPECT_EQ(counter.calls("exchange"), 1) << counter.table();
    EXPECT_EQ(counter.calls(), 1) << counter.table();
    EXPECT_EQ(ShardTensor(y).spec().partition(), (Partition{10, 0, 6}));
    EXPECT_TRUE(torch::equal(ShardTensor(y).full(), at::cat({whole, whole}, 2)));
  });
}

TEST(Cat, OfNeighbouringPartsSendsNothing) {
  run_ranks(3, [](World& world) {
    const auto whole = x();
    const auto t = scatter_tensor(whole, 0, world.mesh(), {Shard(2)}, {5, 0, 3});
    const CommCounter counter;
    const auto y = at::cat(t.split(3, 2), 2);
    EXPECT_EQ(counter.calls(), 0) << counter.table();
    EXPECT_EQ(ShardTensor(y).spec().partition(), (Partition{5, 0, 3}));
  });
}

}  // namespace
}  // namespace shard::testing
