// SPDX-License-Identifier: Apache-2.0
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor x() { return torch::randn({2, 8, 3}); }

std::vector<Sample> cases() {
  torch::manual_seed(80);
  return {
      {"zeros_like",
       {sharded(x(), 1)},
       [](const Tensors& t) { return at::zeros_like(t[0]) + t[0]; }},
      {"ones_like", {sharded(x(), 1)}, [](const Tensors& t) { return at::ones_like(t[0]) * t[0]; }},
      {"full_like",
       {sharded(x(), 1)},
       [](const Tensors& t) { return at::full_like(t[0], 2.5) * t[0]; }},
      {"zeros_like_with_another_dtype",
       {constant(x(), 1)},
       [](const Tensors& t) { return at::zeros_like(t[0], at::kLong) + 1; }},
      {"ones_like_a_pending_sum",
       {sharded(x(), 1)},
       [](const Tensors& t) { return at::ones_like(t[0].sum()) * t[0].mean(); }},
      {"new_zeros_of_the_same_shape",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         return t[0].new_zeros({2, 8, 3}) + t[0];
       }},
      {"new_zeros_of_its_sizes",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].new_zeros(t[0].sizes()) + t[0] * 2; }},
      {"new_full_of_another_shape",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].new_full({3}, 2.0) * t[0]; }},
      {"new_ones_of_no_dims",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].new_ones({}) + t[0]; }},
  };
}

SHARD_SAMPLES(Creation, cases());

/// A new tensor like the input or of sizes of its own, put to use beside it.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 7);
  const int64_t dim = r.integer(0, static_cast<int64_t>(sizes.size()) - 1);
  const int64_t kind = r.integer(0, 3);
  const Function function = [=](const Tensors& t) {
    if (kind == 0) return t[0] * at::ones_like(t[0]);
    if (kind == 1) return t[0] + t[0].new_full(t[0].sizes(), 2);
    if (kind == 2) return t[0] * at::full_like(t[0], 3);
    return t[0] * t[0].new_ones({t[0].size(-1)});
  };
  Check check;
  if (kind == 3) check.holds_whole = "a new tensor of other sizes than the input's is whole";
  return {"random", {sharded(r.tensor(sizes), dim)}, function, check};
}
SHARD_RANDOM_SAMPLES(RandomCreation, random_sample);

TEST(Creation, LikeAShardAllocatesTheShardOnly) {
  run_ranks(3, [](World& world) {
    const auto t = scatter_tensor(x(), 0, world.mesh(), {Shard(1)}, {6, 0, 2});
    for (const auto& made : {at::empty_like(t), at::zeros_like(t), t.new_empty({2, 8, 3}),
                             t.new_empty_strided({2, 8, 3}, {24, 3, 1}), t.new_zeros({2, 8, 3})}) {
      EXPECT_EQ(ShardTensor(made).spec(), ShardTensor(t).spec());
    }
  });
}

TEST(Creation, LikeAPendingSumIsWhole) {
  run_ranks(2, [](World& world) {
    const auto sum = scatter_tensor(x(), 0, world.mesh(), {Shard(1)}).sum();
    EXPECT_TRUE(ShardTensor(at::ones_like(sum)).spec().is_replicate());
  });
}

}  // namespace
}  // namespace shard::testing
