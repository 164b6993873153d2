// SPDX-License-Identifier: Apache-2.0
// What a search of neighbours sends: blocks of points to the ranks whose queries they are near to,
// and nothing else of size.
#include <gtest/gtest.h>
#include <shard/comm_counter.h>
#include <shard/launch.h>
#include <shard/memory.h>
#include <shard/points.h>
#include <shard/tensor.h>
#include <torch/types.h>

#include <atomic>
#include <functional>

namespace shard {
namespace {

using at::Tensor;

constexpr int kRanks = 4;
constexpr int64_t kPoints = 4000;
constexpr int64_t kBlock = kPoints / kRanks * 2 * 8;  // bytes of a rank's points in the plane

/// Points on a line, in order: a rank's are near to those of the next rank only.
Tensor line() {
  const Tensor x = torch::arange(kPoints).to(at::kDouble);
  return torch::stack({x, torch::zeros_like(x)}, 1);
}

struct Costs {
  std::atomic<int64_t> sent{0}, largest{0};
};

void search_on_ranks(const Tensor& points, Costs& costs,
                     const std::function<void(const Tensor&)>& search) {
  run_ranks(kRanks, [&](World& world) {
    const Tensor cut = scatter_tensor(points, 0, world.mesh(), {Shard(0)});
    auto& account = MemoryAccount::current();
    account.reset_peak();
    const CommCounter counter;
    search(cut);
    costs.sent += counter.bytes();
    int64_t largest = costs.largest;
    while (largest < account.largest() &&
           !costs.largest.compare_exchange_weak(largest, account.largest())) {
    }
  });
}

TEST(NeighboursOfShards, AreFetchedFromRanksNearBy) {
  Costs near;
  search_on_ranks(line(), near, [](const Tensor& x) { knn(x, x, 3); });
  EXPECT_GE(near.sent, 6 * kBlock) << "of both neighbours";
  EXPECT_LT(near.sent, 6 * kBlock + 4096) << "and nobody else";

  Costs balls;
  search_on_ranks(line(), balls, [](const Tensor& x) { radius_search(x, x, 1.5, 3); });
  EXPECT_LT(balls.sent, 6 * kBlock + 4096);

  Costs none;
  search_on_ranks(line(), none, [](const Tensor& x) { radius_search(x, x, 0.5, 3); });
  EXPECT_LT(none.sent, 4096);
}

TEST(NeighboursOfShards, AreFetchedFromAllRanksWherePointsAreMixed) {
  torch::manual_seed(1);
  Costs mixed;
  const Tensor shuffled = line().index_select(0, torch::randperm(kPoints));
  search_on_ranks(shuffled, mixed, [](const Tensor& x) { knn(x, x, 3); });
  EXPECT_GE(mixed.sent, 12 * kBlock);
  EXPECT_LT(mixed.sent, 12 * kBlock + 4096);
  EXPECT_LT(mixed.largest, 2 * kBlock) << "no rank holds all points";
}

}  // namespace
}  // namespace shard
