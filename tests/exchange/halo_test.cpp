// SPDX-License-Identifier: Apache-2.0
// The halo exchange is a linear map: who gets what, its exact adjoint, and how many messages that
// takes.
#include <gtest/gtest.h>
#include <shard/comm_counter.h>
#include <shard/exchange.h>
#include <shard/launch.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <random>

#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using torch::Tensor;
using torch::indexing::Slice;
using RowLists = std::vector<std::vector<Rows>>;

Tensor whole_tensor(int64_t rows) {
  return torch::arange(2 * rows * 3, torch::kDouble).reshape({2, rows, 3});
}

Tensor local_rows(const Tensor& whole, const Partition& owned, int64_t rank) {
  return whole.narrow(1, offset_of(owned, rank), owned[static_cast<size_t>(rank)]).clone();
}

int64_t total(const Partition& partition) {
  return offset_of(partition, static_cast<int64_t>(partition.size()));
}

/// `before` and `after` rows around every rank's own (none around an empty one).
RowLists around(const Partition& owned, int64_t before, int64_t after) {
  const int64_t n = total(owned);
  RowLists wanted;
  int64_t begin = 0;
  for (const int64_t size : owned) {
    wanted.push_back({{std::max<int64_t>(begin - before, 0), std::min(begin + size + after, n)}});
    if (size == 0) wanted.back() = {};
    begin += size;
  }
  return wanted;
}

RowLists random_ranges(const Partition& owned, std::mt19937& random) {
  const int64_t n = total(owned);
  RowLists wanted;
  for (size_t rank = 0; rank < owned.size(); ++rank) {
    auto& ranges = wanted.emplace_back();
    for (auto count = random() % 4; count > 0; --count) {
      const auto a = static_cast<int64_t>(random()) % (n + 1);
      const auto b = static_cast<int64_t>(random()) % (n + 1);
      ranges.push_back({std::min(a, b), std::max(a, b)});
    }
  }
  return wanted;
}

/// Every rank gets the rows it wants, in the order in which it lists them.
void expect_wanted_rows(const Partition& owned, const RowLists& wanted) {
  const Tensor whole = whole_tensor(total(owned));
  const auto plan = make_halo_plan(1, owned, wanted);
  run_ranks(static_cast<int>(owned.size()), [&](World& world) {
    const auto halo = exchange_halo(local_rows(whole, owned, world.rank()), plan, world.mesh());
    std::vector<Tensor> want{whole.narrow(1, 0, 0)};
    for (const auto& rows : wanted[static_cast<size_t>(world.rank())]) {
      want.push_back(whole.narrow(1, rows.begin, rows.size()));
    }
    EXPECT_TRUE(torch::equal(assemble(halo, plan, world.rank()), torch::cat(want, 1)));
  });
}

/// <Hx, y> = <x, H'y>, and the same for the adjoint's own backward.
void expect_exact_adjoint(const Partition& owned, const RowLists& wanted) {
  const auto plan = make_halo_plan(1, owned, wanted);
  std::vector<std::array<double, 4>> products(owned.size());
  run_ranks(static_cast<int>(owned.size()), [&](World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    manual_seed(17 + rank);
    const auto options = torch::TensorOptions(torch::kDouble);
    const Tensor x = torch::randn({2, owned[rank], 3}, options).requires_grad_();
    const auto halo = exchange_halo(x, plan, world.mesh());
    const Tensor y_own = torch::randn(halo.own.sizes(), options).requires_grad_();
    const Tensor y_rows = torch::randn(halo.rows.sizes(), options).requires_grad_();
    const Tensor adjoint =
        torch::autograd::grad({halo.own, halo.rows}, {x}, {y_own, y_rows}, true, true)[0];
    const auto twice =
        torch::autograd::grad({adjoint}, {y_own, y_rows}, {x.detach()}, false, false, true);
    const auto dot = [](const Tensor& a, const Tensor& b) {
      return b.defined() ? (a * b).sum().item<double>() : 0.;
    };
    products[rank] = {dot(halo.own, y_own) + dot(halo.rows, y_rows), dot(x, adjoint),
                      dot(y_own, twice[0]) + dot(y_rows, twice[1]),
                      x.square().sum().item<double>() + y_own.square().sum().item<double>() +
                          y_rows.square().sum().item<double>()};
  });
  std::array<double, 4> sum{};
  for (const auto& product : products) {
    for (size_t i = 0; i < 4; ++i) sum[i] += product[i];
  }
  EXPECT_NEAR(sum[0], sum[1], 1e-12 * sum[3]);
  EXPECT_NEAR(sum[2], sum[1], 1e-12 * sum[3]);
}

TEST(HaloExchange, GivesTheRowsAroundEveryShard) {
  expect_wanted_rows({4, 4, 4}, around({4, 4, 4}, 1, 1));
  expect_wanted_rows({6, 1, 2}, around({6, 1, 2}, 2, 1));
}

TEST(HaloExchange, ReachesOverSeveralAndOverEmptyShards) {
  expect_wanted_rows({3, 1, 0, 1}, around({3, 1, 0, 1}, 3, 4));
  expect_wanted_rows({0, 2, 0, 5}, around({0, 2, 0, 5}, 2, 2));
}

TEST(HaloExchange, MoreRanksThanRows) {
  const Partition owned{1, 1, 1, 1, 1, 1, 0};
  expect_wanted_rows(owned, around(owned, 2, 2));
  expect_exact_adjoint(owned, around(owned, 2, 2));
}

TEST(HaloExchange, WrapsAroundAndRepeatsRows) {
  expect_wanted_rows({3, 4}, {{{5, 7}, {0, 3}, {3, 4}}, {{2, 7}, {0, 2}, {0, 2}}});
}

TEST(HaloExchange, BackwardIsTheExactAdjoint) {
  for (const Partition& owned : {Partition{8}, {4, 4}, {7, 1}, {0, 5, 3}, {2, 0, 1, 6}}) {
    for (const auto& [before, after] :
         {std::pair<int64_t, int64_t>{1, 1}, {0, 5}, {5, 0}, {2, 3}}) {
      expect_exact_adjoint(owned, around(owned, before, after));
    }
  }
}

TEST(HaloExchange, BackwardIsTheExactAdjointOfRandomPlans) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 20; ++trial) {
    Partition owned;
    for (int rank = 0; rank < 2 + trial % 3; ++rank)
      owned.push_back(static_cast<int64_t>(random() % 6));
    owned.back() += 1;
    expect_exact_adjoint(owned, random_ranges(owned, random));
  }
}

TEST(HaloExchange, ZeroWidthReturnsTheInputAndSendsNothing) {
  const Partition owned{3, 5};
  const auto plan = make_halo_plan(1, owned, around(owned, 0, 0));
  EXPECT_FALSE(plan.communicates());
  run_ranks(2, [&](World& world) {
    const auto mesh = world.mesh();
    const Tensor x = local_rows(whole_tensor(8), owned, world.rank());
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
    const Tensor x = local_rows(whole_tensor(8), owned, world.rank());
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
    const Tensor x = local_rows(whole_tensor(7), owned, world.rank()).requires_grad_();
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
