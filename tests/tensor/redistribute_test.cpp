// SPDX-License-Identifier: Apache-2.0
// Moving between placements: values, specs, exact adjoints, bytes.
#include <gtest/gtest.h>
#include <shard/primitives.h>
#include <shard/shard.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include "support/redistribute_cases.h"
#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;

Tensor sample() { return torch::arange(7. * 6, torch::kDouble).view({7, 6}).sin(); }

TEST(Redistribute, EveryPairOfPlacementsKeepsTheValue) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [](World& world) { expect_moves_keep_the_value(world.mesh()); });
  }
}

TEST(Redistribute, BackwardIsTheExactAdjoint) {
  for (const int ranks : {2, 3, 4}) {
    run_ranks(ranks, [](World& world) { expect_backward_moves_are_adjoint(world.mesh()); });
  }
}

TEST(Redistribute, DimsShorterThanTheMeshHaveValuesAndGradients) {
  run_ranks(4, [](World& world) { expect_short_dims_move(world.mesh()); });
}

TEST(Redistribute, GradientOfContributionsIsTheWholeGradientOnEveryRank) {
  run_ranks(3, [](World& world) {
    const auto mesh = world.mesh();
    for (const auto op : {ReduceOp::Sum, ReduceOp::Avg}) {
      auto local = (sample() * (world.rank() + 1.0)).requires_grad_();
      const Tensor y = from_local(local, mesh, {Partial(op)});
      const Tensor loss = (ShardTensor(y).full() * sample()).sum();
      loss.backward();
      EXPECT_LE(relative_error(local.grad(), sample() / (op == ReduceOp::Avg ? 3 : 1)), 1e-12);
    }
  });
}

TEST(Redistribute, UnchangedPlacementIsTheSameTensorAndSendsNothing) {
  run_ranks(2, [](World& world) {
    const Tensor x = scatter_tensor(sample(), 0, world.mesh(), {Shard(0)}, {5, 2});
    const CommCounter counter;
    EXPECT_TRUE(ShardTensor(x).redistribute({Shard(0)}).tensor().is_same(x));
    EXPECT_EQ(counter.calls(), 0);
  });
}

TEST(Redistribute, MovedBoundariesSendOnlyTheRowsThatChangeOwner) {
  run_ranks(3, [](World& world) {
    const Tensor x = scatter_tensor(sample(), 0, world.mesh(), {Shard(0)}, {3, 2, 2});
    const CommCounter counter;
    const auto y = ShardTensor(x).redistribute({Shard(0)}, {2, 3, 2});
    const int64_t row = 6 * 8;
    EXPECT_EQ(counter.bytes(), world.rank() == 0 ? row : 0) << counter.table();
    EXPECT_LE(relative_error(y.full(), sample()), 0);
  });
}

TEST(Redistribute, ResultDoesNotAliasTheInput) {
  run_ranks(2, [](World& world) {
    Tensor x = scatter_tensor(sample(), 0, world.mesh(), {Replicate()});
    const auto y = ShardTensor(x).redistribute({Shard(0)});
    x.zero_();
    EXPECT_LE(relative_error(y.full(), sample()), 0);
  });
}

TEST(Redistribute, PartialMaxAndMinReduce) {
  run_ranks(3, [](World& world) {
    const Tensor local = torch::full({2}, world.rank() + 1.0);
    EXPECT_EQ(ShardTensor(from_local(local, world.mesh(), {Partial(ReduceOp::Max)}))
                  .full()[0]
                  .item<double>(),
              3);
    EXPECT_EQ(ShardTensor(from_local(local, world.mesh(), {Partial(ReduceOp::Min)}))
                  .full()[0]
                  .item<double>(),
              1);
  });
}

TEST(Redistribute, KeepsChannelsLast) {
  run_ranks(2, [](World& world) {
    const auto whole = torch::randn({2, 4, 6, 5}).contiguous(at::MemoryFormat::ChannelsLast);
    Tensor x = scatter_tensor(whole, 0, world.mesh(), {Shard(2)});
    x = x.contiguous(at::MemoryFormat::ChannelsLast);
    EXPECT_TRUE(x.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(raw_local(x).is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(x.relu().is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_LE(relative_error(ShardTensor(x).full(), whole), 0);
  });
}

TEST(Redistribute, BadTargetsNameWhatWasGot) {
  run_ranks(2, [](World& world) {
    const ShardTensor x(scatter_tensor(sample(), 0, world.mesh(), {Shard(0)}));
    EXPECT_THROW(x.redistribute({Shard(2)}), SpecMismatch);
    EXPECT_THROW(x.redistribute({Shard(0)}, {1, 1}), SpecMismatch);
    EXPECT_THROW(x.redistribute({Shard(0), Replicate()}), SpecMismatch);
  });
}

}  // namespace
}  // namespace shard::testing
