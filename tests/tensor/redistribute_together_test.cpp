// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <shard/comm_counter.h>
#include <shard/primitives.h>
#include <shard/redistribute_together.h>
#include <shard/shard.h>
#include <torch/autograd.h>
#include <torch/types.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensors fields() {
  return {torch::arange(60, at::kDouble).view({5, 4, 3}),
          torch::arange(24, at::kDouble).view({6, 4}),
          torch::arange(14, at::kDouble).view({2, 7}) + 100};
}

/// Cut along dim 0 of the first two and dim 1 of the last, unevenly; one rank has nothing.
Tensors cut(const World& world) {
  const DeviceMesh mesh = world.mesh();
  Tensors result;
  const std::vector<int64_t> dims{0, 0, 1};
  for (size_t i = 0; i < 3; ++i) {
    const Tensor whole = fields()[i];
    Partition partition(static_cast<size_t>(mesh.size()), 0);
    partition[0] = 1;
    partition.back() += whole.size(dims[i]) - 1;
    result.push_back(scatter_tensor(whole, 0, mesh, {Shard(dims[i])}, partition));
  }
  return result;
}

/// The first two along dim 1, the last along dim 0.
std::vector<SpecRef> targets_of(const Tensors& tensors) {
  std::vector<SpecRef> targets;
  const std::vector<int64_t> dims{1, 1, 0};
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& spec = spec_of(tensors[i]);
    const auto ranks = static_cast<int64_t>(spec->partition().size());
    targets.push_back(spec->with(Shard(dims[i]), tensors[i].sizes(),
                                 even_partition(tensors[i].size(dims[i]), ranks)));
  }
  return targets;
}

class RedistributeTogether : public ::testing::TestWithParam<int> {};

TEST_P(RedistributeTogether, IsOneExchangeOfWhatRedistributeDoes) {
  run_ranks(GetParam(), [](World& world) {
    const Tensors tensors = cut(world);
    const auto targets = targets_of(tensors);
    CommCounter counter;
    const Tensors moved = redistribute_together(tensors, targets);
    EXPECT_EQ(counter.calls(), world.size() > 1 ? 1 : 0);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(*spec_of(moved[i]), *targets[i]);
      EXPECT_TRUE(at::equal(raw_local(moved[i]), raw_local(redistribute(tensors[i], targets[i]))));
      EXPECT_TRUE(at::equal(ShardTensor(moved[i]).full(), fields()[i]));
    }
  });
}

TEST_P(RedistributeTogether, BringsGradientsBackTogether) {
  run_ranks(GetParam(), [](World& world) {
    const Tensors tensors = cut(world);
    tensors[0].set_requires_grad(true);
    tensors[2].set_requires_grad(true);
    const Tensors moved = redistribute_together(tensors, targets_of(tensors));
    EXPECT_FALSE(moved[1].requires_grad());
    const Tensor loss = moved[0].pow(3).sum() + moved[2].pow(2).sum();
    const Tensors gradients =
        torch::autograd::grad({loss}, {tensors[0], tensors[2]}, {}, {}, /*create_graph=*/true);
    EXPECT_TRUE(at::equal(ShardTensor(gradients[0]).full(), 3 * fields()[0].pow(2)));
    EXPECT_TRUE(at::equal(ShardTensor(gradients[1]).full(), 2 * fields()[2]));
    EXPECT_EQ(spec_of(gradients[0])->partition(), spec_of(tensors[0])->partition());
    const Tensors second = torch::autograd::grad({gradients[0].sum()}, {tensors[0]});
    EXPECT_TRUE(at::equal(ShardTensor(second[0]).full(), 6 * fields()[0]));
  });
}

TEST_P(RedistributeTogether, OneOfSeveralMayBeUnused) {
  run_ranks(GetParam(), [](World& world) {
    Tensors tensors = cut(world);
    for (const Tensor& t : tensors) t.set_requires_grad(true);
    const Tensors moved = redistribute_together(tensors, targets_of(tensors));
    const Tensors gradients = torch::autograd::grad({moved[1].sum()}, tensors, {}, {}, {},
                                                    /*allow_unused=*/true);
    EXPECT_FALSE(gradients[0].defined() || gradients[2].defined());
    EXPECT_TRUE(at::equal(ShardTensor(gradients[1]).full(), torch::ones({6, 4}, at::kDouble)));
  });
}

TEST_P(RedistributeTogether, MovesOthersOneByOne) {
  run_ranks(GetParam(), [](World& world) {
    const Tensors tensors = cut(world);
    auto targets = targets_of(tensors);
    targets[1] = spec_of(tensors[1])->replicated();
    targets[2] = spec_of(tensors[2]);
    const Tensors moved = redistribute_together(tensors, targets);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(ShardTensor(moved[i]).full(), fields()[i]));
    }
    EXPECT_TRUE(moved[2].is_same(tensors[2]));
    EXPECT_TRUE(redistribute_together({}, {}).empty());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RedistributeTogether, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace shard::testing
