// SPDX-License-Identifier: Apache-2.0
// Tensors on meshes of several dims: how they are made, moved and described.
#include <gtest/gtest.h>
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <torch/types.h>

#include <cstdlib>

#include "support/redistribute_cases.h"
#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;

Tensor sample() { return torch::arange(2. * 7 * 5, torch::kDouble).view({2, 7, 5}); }

TEST(Grid, ScatterGivesEveryRankItsBox) {
  run_ranks(4, [](World& world) {
    const auto mesh = world.mesh({{"a", 2}, {"b", 2}});
    const auto x = scatter_tensor(world.is_root() ? sample() : Tensor(), 0, mesh,
                                  {Shard(1), Shard(2)}, std::vector<Partition>{{3, 4}, {0, 5}});
    EXPECT_EQ(x.sizes(), sample().sizes());
    const int64_t a = mesh.coordinate("a");
    const int64_t b = mesh.coordinate("b");
    const Tensor want = sample().narrow(1, a ? 3 : 0, a ? 4 : 3).narrow(2, 0, b ? 5 : 0);
    EXPECT_TRUE(torch::equal(ShardTensor(x).local(), want));
    EXPECT_TRUE(torch::equal(ShardTensor(x).full(), sample()));
    EXPECT_EQ(ShardTensor(x).placements(), (Placements{Shard(1), Shard(2)}));
    EXPECT_EQ(ShardTensor(x).partition(1), (Partition{3, 4}));
    EXPECT_EQ(ShardTensor(x).partition(-1), (Partition{0, 5}));
    EXPECT_EQ(ShardTensor(x).partition(0), (Partition{2}));
    EXPECT_EQ(ShardTensor(x).mesh().layout(), mesh.layout());
  });
}

TEST(Grid, OneTensorDimCutByTwoMeshDimsHasAPieceForEveryPairOfPlaces) {
  run_ranks(4, [](World& world) {
    const auto mesh = world.mesh({{"a", 2}, {"b", 2}});
    const auto x = scatter_tensor(sample(), 0, mesh, {Shard(1), Shard(1)},
                                  std::vector<Partition>{{1, 4, 0, 2}, {}});
    const int64_t sizes[] = {1, 4, 0, 2};
    EXPECT_EQ(ShardTensor(x).local().size(1), sizes[world.rank()]);
    EXPECT_TRUE(torch::equal(ShardTensor(x).full(), sample()));
    EXPECT_EQ(ShardTensor(x).placements(), (Placements{Shard(1), Shard(1)}));
    EXPECT_TRUE(torch::equal(ShardTensor(x * 2 + 1).full(), sample() * 2 + 1));
  });
}

TEST(Grid, FromLocalAgreesOnSizesAlongEveryDim) {
  run_ranks(6, [](World& world) {
    const auto mesh = world.mesh({{"a", 2}, {"b", 3}});
    const int64_t rows = mesh.coordinate("a") ? 3 : 1;
    const int64_t columns = mesh.coordinate("b") + 1;
    const auto x =
        from_local(torch::full({rows, columns}, world.rank()), mesh, {Shard(0), Shard(1)});
    EXPECT_EQ(x.sizes(), (at::IntArrayRef{4, 6}));
    EXPECT_EQ(ShardTensor(x).partition(1), (Partition{1, 2, 3}));
    EXPECT_THROW(from_local(torch::ones({rows, world.rank() == 5 ? 9 : columns}), mesh,
                            {Shard(0), Shard(1)}),
                 SpecMismatch);
  });
}

/// A function of local parts only, wrapped again: sizes are added up over both mesh dims.
TEST(Grid, FromLocalOfADimThatTwoMeshDimsCut) {
  run_ranks(4, [](World& world) {
    const auto mesh = world.mesh({{"a", 2}, {"b", 2}});
    const Tensor whole = torch::arange(20., torch::kDouble).view({10, 2});
    for (const Partition& pieces : {Partition{3, 2, 3, 2}, {1, 0, 7, 2}}) {
      Tensor x =
          scatter_tensor(whole, 0, mesh, {Shard(0), Shard(0)}, std::vector<Partition>{pieces, {}})
              .requires_grad_();
      const ShardTensor y(from_local(ShardTensor(x).local().square(), mesh, {Shard(0), Shard(0)}));
      EXPECT_EQ(y.tensor().sizes(), (at::IntArrayRef{10, 2}));
      EXPECT_EQ(y.partition(0), pieces);
      EXPECT_TRUE(torch::equal(y.full(), whole.square()));
      y.tensor().sum().backward();
      EXPECT_TRUE(torch::equal(ShardTensor(x.grad()).full(), 2 * whole));
    }
  });
}

/// Cutting a second dim while the first one stays cut unevenly.
TEST(Grid, ASecondCutKeepsTheFirst) {
  run_ranks(4, [](World& world) {
    const auto mesh = world.mesh({{"a", 2}, {"b", 2}});
    const Tensor whole = torch::randn({4, 100, 64});
    const ShardTensor x(scatter_tensor(whole, 0, mesh, {Shard(1), Replicate()},
                                       std::vector<Partition>{{70, 30}, {}}));
    const auto y = x.redistribute({Shard(1), Shard(2)});
    EXPECT_EQ(y.partition(1), (Partition{70, 30}));
    const int64_t rows = mesh.coordinate("a") == 0 ? 70 : 30;
    EXPECT_EQ(y.local().sizes(), (at::IntArrayRef{4, rows, 32}));
    EXPECT_TRUE(torch::equal(y.full(), whole));
  });
}

TEST(Grid, AMeshDimOfOnePlaceCutsAsOthersDo) {
  run_ranks(2, [](World& world) {
    const auto mesh = world.mesh({{"a", 1}, {"b", 2}});
    const Tensor plain = torch::arange(8., torch::kDouble).view({2, 4});
    const auto x = scatter_tensor(plain, 0, mesh, {Shard(0), Shard(1)}).requires_grad_();
    const auto y = scatter_tensor(plain + 1, 0, mesh, {Shard(1), Shard(0)});
    ((x * y).reshape(-1) * x.reshape(-1)).sum().backward();
    EXPECT_TRUE(torch::equal(ShardTensor(x.grad()).full(), 2 * plain * (plain + 1)));
  });
}

TEST(Grid, RefusesWhatDoesNotFitTheMesh) {
  run_ranks(4, [](World& world) {
    const auto mesh = world.mesh({{"a", 2}, {"b", 2}});
    EXPECT_THROW(scatter_tensor(sample(), 0, mesh, {Shard(0)}), SpecMismatch);
    EXPECT_THROW(scatter_tensor(sample(), 0, mesh, {Shard(0), Shard(3)}), SpecMismatch);
    EXPECT_THROW(
        scatter_tensor(sample(), 0, mesh, {Shard(1), Shard(2)}, std::vector<Partition>{{3, 3}, {}}),
        SpecMismatch);
    EXPECT_THROW(scatter_tensor(sample(), 7, mesh, {Shard(1), Replicate()}), ConfigError);
  });
}

TEST(Grid, MovesBoundariesBetweenNeighboursOnly) {
  run_ranks(4, [](World& world) {
    const auto mesh = world.mesh({{"a", 2}, {"b", 2}});
    const auto x = scatter_tensor(sample(), 0, mesh, {Shard(1), Shard(2)},
                                  std::vector<Partition>{{3, 4}, {2, 3}});
    const CommCounter counter;
    const auto y =
        ShardTensor(x).redistribute({Shard(1), Shard(2)}, std::vector<Partition>{{4, 3}, {2, 3}});
    EXPECT_EQ(counter.calls("exchange"), 1) << counter.table();
    EXPECT_EQ(counter.calls(), 1) << counter.table();
    // One row of the own columns, sent by the ranks of the second place only.
    const int64_t row = 2 * (mesh.coordinate("b") ? 3 : 2) * 8;
    EXPECT_EQ(counter.bytes(), mesh.coordinate("a") ? row : 0);
    EXPECT_TRUE(torch::equal(y.full(), sample()));
  });
}

// ---- any placements to any placements

/// 10^5 moves; `make conformance` makes ten times as many.
int as_asked(int cases) {
  const char* mode = std::getenv("SHARD_CONFORMANCE");
  const bool is_full = mode != nullptr && std::string(mode) == "full";
  return (is_full ? 250 : 25) * cases;
}

struct Walk {
  std::vector<int64_t> mesh;
  int cases;
};
class GridWalk : public ::testing::TestWithParam<Walk> {};

TEST_P(GridWalk, EveryPlacementToEveryPlacement) {
  const auto& walk = GetParam();
  int64_t ranks = 1;
  std::vector<MeshDim> dims;
  for (const int64_t size : walk.mesh) {
    dims.push_back({std::string(1, static_cast<char>('a' + dims.size())), size});
    ranks *= size;
  }
  run_ranks(static_cast<int>(ranks), [&](World& world) {
    expect_walks_keep_the_value(world.mesh(dims), as_asked(walk.cases));
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, GridWalk,
                         ::testing::Values(Walk{{1}, 50}, Walk{{3}, 200}, Walk{{2, 2}, 300},
                                           Walk{{3, 2}, 200}, Walk{{2, 1, 2}, 200},
                                           Walk{{2, 2, 2}, 100}),
                         [](const auto& info) {
                           std::string name;
                           for (const auto size : info.param.mesh) {
                             name += (name.empty() ? "" : "x") + std::to_string(size);
                           }
                           return "mesh_" + name;
                         });

}  // namespace
}  // namespace shard::testing
