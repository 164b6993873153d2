// SPDX-License-Identifier: Apache-2.0
// Moving between placements: values, specs, exact adjoints, bytes.
#include <gtest/gtest.h>
#include <shard/primitives.h>
#include <shard/shard.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;

Tensor sample(at::ScalarType type = at::kDouble) {
  return torch::arange(7 * 6, at::TensorOptions(type)).view({7, 6}).sin();
}

/// A ShardTensor with the global value `whole`, placed as asked (Partial: every rank another part
/// of it).
Tensor placed(const Tensor& whole, const DeviceMesh& mesh, const Placement& placement,
              Partition partition) {
  if (!placement.is_partial())
    return scatter_tensor(whole, 0, mesh, {placement}, std::move(partition));
  const auto n = static_cast<double>(mesh.size());
  const double share = (static_cast<double>(mesh.rank()) + 1) * 2 / (n * (n + 1));
  return from_local(whole * share, mesh, {Partial()});
}

std::vector<std::pair<Placement, Partition>> placements(int64_t rows, int64_t columns, int ranks) {
  std::vector<std::pair<Placement, Partition>> result{{Replicate(), {}}, {Partial(), {}}};
  for (const auto& [name, partition] : splits(rows, ranks))
    result.emplace_back(Shard(0), partition);
  for (const auto& [name, partition] : splits(columns, ranks))
    result.emplace_back(Shard(1), partition);
  return result;
}

TEST(Redistribute, EveryPairOfPlacementsKeepsTheValue) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](World& world) {
      const auto mesh = world.mesh();
      for (const auto& [from, from_pieces] : placements(7, 6, ranks)) {
        for (const auto& [to, to_pieces] : placements(7, 6, ranks)) {
          if (from.is_partial() && to.is_partial()) continue;
          const Tensor x = placed(sample(), mesh, from, from_pieces);
          const auto y = ShardTensor(x).redistribute({to}, to_pieces);
          EXPECT_EQ(y.spec().placement(), to);
          EXPECT_EQ(raw_local(y).sizes(), c10::IntArrayRef(y.spec().local_shape(world.rank())));
          EXPECT_LE(relative_error(y.full(), sample()), 1e-12) << from << " -> " << to;
        }
      }
    });
  }
}

/// <R x, y> == <x, R' y> on global values, for leaves with distinct values.
TEST(Redistribute, BackwardIsTheExactAdjoint) {
  for (const int ranks : {2, 3, 4}) {
    run_ranks(ranks, [&](World& world) {
      const auto mesh = world.mesh();
      const Tensor cotangent = sample().cos();
      for (const auto& [from, from_pieces] : placements(7, 6, ranks)) {
        if (from.is_partial()) continue;
        for (const auto& [to, to_pieces] : placements(7, 6, ranks)) {
          if (to.is_partial()) continue;
          Tensor x = placed(sample(), mesh, from, from_pieces).requires_grad_();
          const auto y = ShardTensor(x).redistribute({to}, to_pieces);
          const Tensor v = placed(cotangent, mesh, to, to_pieces);
          const auto g = torch::autograd::grad({y.tensor()}, {x}, {v})[0];
          EXPECT_EQ(ShardTensor(g).spec(), ShardTensor(x).spec());
          EXPECT_LE(relative_error(ShardTensor(g).full(), cotangent), 1e-14)
              << from << " -> " << to;
        }
      }
    });
  }
}

/// Moving to, from and between dims that are shorter than the mesh, some ranks getting nothing.
TEST(Redistribute, DimsShorterThanTheMeshHaveValuesAndGradients) {
  const Tensor whole = sample().narrow(0, 0, 3).narrow(1, 0, 2);
  run_ranks(4, [&](World& world) {
    const auto mesh = world.mesh();
    for (const auto& [from, from_pieces] : placements(3, 2, 4)) {
      if (from.is_partial()) continue;
      for (const auto& [to, to_pieces] : placements(3, 2, 4)) {
        if (to.is_partial()) continue;
        Tensor x = placed(whole, mesh, from, from_pieces).requires_grad_();
        const auto y = ShardTensor(x).redistribute({to}, to_pieces);
        EXPECT_TRUE(y.full().equal(whole)) << from << " -> " << to;
        (y.tensor() * y.tensor()).sum().backward();
        EXPECT_TRUE(ShardTensor(x.grad()).full().equal(2 * whole)) << from << " -> " << to;
      }
    }
  });
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
