// SPDX-License-Identifier: Apache-2.0
// Reports of users of other systems about random masks and in-place views: S1 and S11. (23, about
// index_put, is in edge_cases_indices_test.cpp; S9 is Grid.ASecondCutKeepsTheFirst, S10 is
// Refusals.AnOpWithoutRuleNamesItselfThePlacementsAndTheWaysOut.)
#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/shard.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;

Tensor mask_of(const Tensor& x) {
  manual_seed(5);
  return torch::dropout(torch::ones_like(x), 0.5, /*train=*/true);
}

// S1: masks of the parts are no repeats of each other, and together the mask of one device.
TEST(ReportedMasks, OfPartsAreThePartsOfOneMask) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [](World& world) {
      const Tensor whole = torch::ones({24, 16});
      const Tensor want = mask_of(whole);
      const Tensor got = mask_of(scatter_tensor(whole, 0, world.mesh(), {Shard(0)}));
      EXPECT_TRUE(torch::equal(ShardTensor(got).full(), want));
      const Tensor columns = mask_of(scatter_tensor(whole, 0, world.mesh(), {Shard(1)}));
      EXPECT_TRUE(torch::equal(ShardTensor(columns).full(), want));
    });
  }
}

// S1: a replicated activation has one mask on all ranks.
TEST(ReportedMasks, OfAReplicatedTensorAreOneOnAllRanks) {
  run_ranks(3, [](World& world) {
    const Tensor whole = torch::ones({8, 4});
    const Tensor replicated =
        ShardTensor(scatter_tensor(whole, 0, world.mesh(), {Shard(0)})).redistribute({Replicate()});
    const Tensor mask = mask_of(replicated);
    EXPECT_TRUE(torch::equal(ShardTensor(mask).local(), mask_of(whole)));
  });
}

/// What the tensor says of itself fits what this rank holds.
void expect_in_step(const Tensor& x, at::IntArrayRef sizes, int rank) {
  const ShardTensor t(x);
  EXPECT_EQ(x.sizes(), sizes);
  EXPECT_EQ(t.spec().global_shape(), sizes);
  EXPECT_EQ(t.local().sizes(), c10::IntArrayRef(t.spec().local_shape(rank)));
}

// S11: squeeze_ of a sharded dim of size 1 changes sizes, spec and local part together where one
// rank has all, else none of them.
TEST(ReportedInPlaceViews, SqueezeOfTheShardedOnlyRowLeavesNothingOutOfStep) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](World& world) {
      for (const bool names_the_dim : {false, true}) {
        const Tensor whole = torch::randn({1, 5});
        Tensor x = scatter_tensor(whole, 0, world.mesh(), {Shard(0)});
        bool is_squeezed = true;
        try {
          names_the_dim ? x.squeeze_(0) : x.squeeze_();
        } catch (const SpecMismatch&) {
          is_squeezed = false;
        }
        EXPECT_EQ(is_squeezed, world.size() == 1);
        const Tensor want = is_squeezed ? whole.squeeze(0) : whole;
        expect_in_step(x, want.sizes(), world.rank());
        EXPECT_TRUE(torch::equal(ShardTensor(x).full(), want));
        EXPECT_TRUE(torch::equal(ShardTensor(x * 2).full(), want * 2));
      }
    });
  }
}

TEST(ReportedInPlaceViews, SqueezeAroundTheShardedDimKeepsItsPieces) {
  run_ranks(3, [](World& world) {
    const Tensor whole = torch::randn({1, 5, 1});
    Tensor x = scatter_tensor(whole, 0, world.mesh(), {Shard(1)}, {1, 0, 4});
    x.squeeze_();
    expect_in_step(x, {5}, world.rank());
    EXPECT_EQ(ShardTensor(x).spec().partition(), (Partition{1, 0, 4}));
    EXPECT_TRUE(torch::equal(ShardTensor(x).full(), whole.squeeze()));
  });
}

}  // namespace
}  // namespace shard::testing
