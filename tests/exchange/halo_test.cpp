// SPDX-License-Identifier: Apache-2.0
// The halo exchange is a linear map: who gets what, its exact adjoint, and how many messages that
// takes.
#include <gtest/gtest.h>
#include <shard/comm_counter.h>
#include <shard/exchange.h>
#include <shard/launch.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include "support/halo_cases.h"
#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using torch::Tensor;

void on_threads(const HaloCase& halo, void (*expect)(const HaloCase&, const DeviceMesh&)) {
  run_ranks(static_cast<int>(halo.owned.size()), [&](World& world) { expect(halo, world.mesh()); });
}

HaloCase around_case(const Partition& owned, int64_t before, int64_t after) {
  return {"", owned, around(owned, before, after)};
}

TEST(HaloExchange, GivesTheRowsAroundEveryShard) {
  on_threads(around_case({4, 4, 4}, 1, 1), expect_wanted_rows);
  on_threads(around_case({6, 1, 2}, 2, 1), expect_wanted_rows);
}

TEST(HaloExchange, ReachesOverSeveralAndOverEmptyShards) {
  on_threads(around_case({3, 1, 0, 1}, 3, 4), expect_wanted_rows);
  on_threads(around_case({0, 2, 0, 5}, 2, 2), expect_wanted_rows);
}

TEST(HaloExchange, MoreRanksThanRows) {
  const auto halo = around_case({1, 1, 1, 1, 1, 1, 0}, 2, 2);
  on_threads(halo, expect_wanted_rows);
  on_threads(halo, expect_exact_adjoint);
}

TEST(HaloExchange, WrapsAroundAndRepeatsRows) {
  on_threads({"", {3, 4}, {{{5, 7}, {0, 3}, {3, 4}}, {{2, 7}, {0, 2}, {0, 2}}}},
             expect_wanted_rows);
}

TEST(HaloExchange, AnyRowsToAnyRankAndBack) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](World& world) {
      const auto mesh = world.mesh();
      for (const auto& halo : halo_cases(ranks)) {
        expect_wanted_rows(halo, mesh);
        expect_exact_adjoint(halo, mesh);
      }
    });
  }
}

TEST(HaloExchange, ZeroWidthReturnsTheInputAndSendsNothing) {
  const Partition owned{3, 5};
  const auto plan = make_halo_plan(1, owned, around(owned, 0, 0));
  EXPECT_FALSE(plan.communicates());
  run_ranks(2, [&](World& world) {
    const auto mesh = world.mesh();
    const Tensor x = local_rows(halo_whole(8), owned, world.rank());
    const CommCounter counter;
    const auto halo = exchange_halo(x, plan, mesh);
    EXPECT_TRUE(assemble(halo, plan, world.rank()).is_same(x));
    EXPECT_EQ(counter.calls(), 0);
  });
}

TEST(HaloExchange, OneSidedHaloMovesThoseRowsOnly) {
  const Partition owned{4, 4};
  const auto plan = make_halo_plan(1, owned, around(owned, 2, 0));
  run_ranks(2, [&](World& world) {
    const auto mesh = world.mesh();
    const Tensor x = local_rows(halo_whole(8), owned, world.rank());
    const CommCounter counter;
    exchange_halo(x, plan, mesh);
    const int64_t row_bytes = 2 * 3 * 8;
    EXPECT_EQ(counter.calls("exchange"), 1);
    EXPECT_EQ(counter.calls(), 1);
    EXPECT_EQ(counter.bytes(), world.rank() == 0 ? 2 * row_bytes : 0);
  });
}

TEST(HaloExchange, ForwardAndBackwardTakeOneExchangeEach) {
  const Partition owned{4, 0, 3};
  const auto plan = make_halo_plan(1, owned, around(owned, 1, 1));
  run_ranks(3, [&](World& world) {
    const auto mesh = world.mesh();
    const Tensor x = local_rows(halo_whole(7), owned, world.rank()).requires_grad_();
    const CommCounter counter;
    const auto halo = exchange_halo(x, plan, mesh);
    EXPECT_EQ(counter.calls("exchange"), 1);
    assemble(halo, plan, world.rank()).sum().backward();
    EXPECT_EQ(counter.calls("exchange"), 2);
    EXPECT_EQ(counter.calls(), 2);
  });
}

TEST(HaloExchange, KeepsChannelsLast) {
  const Partition owned{2, 3};
  const auto plan = make_halo_plan(2, owned, around(owned, 1, 1));
  run_ranks(2, [&](World& world) {
    const Tensor x = torch::randn({2, 3, owned[static_cast<size_t>(world.rank())], 4})
                         .contiguous(torch::MemoryFormat::ChannelsLast);
    const auto halo = exchange_halo(x, plan, world.mesh());
    const Tensor rows = assemble(halo, plan, world.rank(), world.rank() == 0, world.rank() == 1);
    EXPECT_TRUE(rows.is_contiguous(torch::MemoryFormat::ChannelsLast));
  });
}

TEST(AddStrips, AddsInPlaceAndIsDifferentiableTwice) {
  const auto options = torch::TensorOptions(torch::kDouble).requires_grad(true);
  const Tensor x = torch::randn({2, 5, 3}, options);
  const Tensor low = torch::randn({2, 1, 3}, options);
  const Tensor high = torch::randn({2, 2, 3}, options);
  const Tensor y = x * 2;
  const Tensor sum = add_strips(y, low, high, 1);
  EXPECT_EQ(sum.data_ptr(), y.data_ptr());
  const Tensor want = torch::cat(
      {2 * x.slice(1, 0, 1) + low, 2 * x.slice(1, 1, 3), 2 * x.slice(1, 3, 5) + high}, 1);
  EXPECT_LE(relative_error(sum, want), 1e-15);
  const auto gradients = torch::autograd::grad({sum.pow(3).sum()}, {x, low, high}, {}, true, true);
  const auto wanted = torch::autograd::grad({want.pow(3).sum()}, {x, low, high}, {}, true, true);
  const auto penalty = [&](const std::vector<Tensor>& g) {
    return torch::autograd::grad({g[0].square().sum() + g[1].square().sum() + g[2].square().sum()},
                                 {x, low, high});
  };
  const auto second = penalty(gradients);
  const auto wanted_second = penalty(wanted);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LE(relative_error(gradients[i], wanted[i]), 1e-14);
    EXPECT_LE(relative_error(second[i], wanted_second[i]), 1e-14);
  }
}

}  // namespace
}  // namespace shard::testing
