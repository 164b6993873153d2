// SPDX-License-Identifier: Apache-2.0
// Meshes of several dims: what one level must not take for the whole.
#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <torch/types.h>

#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;

Tensor d(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); }

/// Runs on a 2 x 2 mesh ("a", "b").
void on_a_grid(const std::function<void(const DeviceMesh&)>& body) {
  run_ranks(4, [&](World& world) { body(world.mesh({{"a", 2}, {"b", 2}})); });
}

void expect_full(const Tensor& got, const Tensor& want, double tolerance = 1e-12) {
  EXPECT_LE(relative_error(ShardTensor(got.detach()).full(), want), tolerance);
}

TEST(Levels, OneDimOfAMeshIsAMeshOfItsOwn) {
  const Tensor whole = d({1, 4, 7, 5});
  on_a_grid([&](const DeviceMesh& mesh) {
    for (const char* name : {"a", "b"}) {
      const auto x = scatter_tensor(whole, 0, mesh[name], {Shard(2)});
      expect_full(torch::group_norm(x, 2), torch::group_norm(whole, 2));
      expect_full(torch::layer_norm(x, {7, 5}), torch::layer_norm(whole, {7, 5}));
    }
  });
}

TEST(Levels, APendingSumIsNoAliasOfWhatItCameFrom) {
  on_a_grid([](const DeviceMesh& mesh) {
    for (const auto op : {ReduceOp::Sum, ReduceOp::Avg}) {
      const auto x = shard::zeros({4}, mesh, {Replicate(), Replicate()});
      Tensor y = ShardTensor(x).redistribute({Partial(op), Replicate()}).tensor();
      y.add_(1);
      expect_full(x, torch::zeros({4}));
      expect_full(y, torch::ones({4}));
    }
  });
}

TEST(Levels, CopiesThatAnInnerLevelMadeAreMarked) {
  on_a_grid([](const DeviceMesh& mesh) {
    const Tensor whole = d({4, 6});
    auto x = scatter_tensor(whole, 0, mesh, {Shard(0), Shard(1)});
    const auto stale = x.select(1, 0);
    x.add_(1);
    EXPECT_THROW(stale + 0, SpecMismatch);
    expect_full(x.select(1, 0) + 0, whole.select(1, 0) + 1);
    EXPECT_THROW(x.select(1, 0).add_(1), SpecMismatch);
  });
}

TEST(Levels, NormalizationsMoveCutChannelsAlikeAtEveryPlace) {
  const Tensor batch = d({9, 4, 3});
  const Tensor image = d({1, 6, 9, 4});
  on_a_grid([&](const DeviceMesh& mesh) {
    const auto x = scatter_tensor(batch, 0, mesh, {Shard(0), Shard(1)});
    expect_full(at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false),
                at::batch_norm(batch, {}, {}, {}, {}, true, 0.1, 1e-5, false));
    const auto y = scatter_tensor(image, 0, mesh, {Shard(2), Shard(1)});
    expect_full(torch::group_norm(y, 2), torch::group_norm(image, 2));
  });
}

// The mesh of the tensor says over whom: a tensor on the domain alone has its own replica's
// statistics, one on the whole mesh those of the union batch.
TEST(Levels, BatchNormTakesItsStatisticsOverTheTensorsMesh) {
  const Tensor batch = d({3, 2, 9, 4}) * 2 + 1e4;
  const auto norm = [](const Tensor& x, Tensor& mean, Tensor& var) {
    return at::batch_norm(x, {}, {}, mean, var, true, 0.1, 1e-5, false);
  };
  const auto statistics = [] { return std::pair(at::zeros({2}, at::kDouble), d({2}).fill_(1)); };
  on_a_grid([&](const DeviceMesh& mesh) {
    const Tensor own = batch.narrow(0, mesh.coordinate("a"), 1 + mesh.coordinate("a"));
    for (const bool over_all : {false, true}) {
      auto [mean, var] = statistics();
      auto [want_mean, want_var] = statistics();
      const Tensor whole = over_all ? batch : own;
      const auto x = over_all
                         ? scatter_tensor(whole, 0, mesh, {Shard(0), Shard(2)}, {{1, 2}, {7, 2}})
                         : scatter_tensor(whole, 0, mesh["b"], {Shard(2)}, Partition{7, 2});
      expect_full(norm(x, mean, var), norm(whole, want_mean, want_var), 1e-9);
      EXPECT_LE(relative_error(mean, want_mean), 1e-13);
      EXPECT_LE(relative_error(var, want_var), 1e-10);
    }
  });
}

TEST(Levels, NormalizationsTakeShardedWeights) {
  const Tensor whole = d({2, 4, 6, 4});
  const Tensor w = d({4});
  on_a_grid([&](const DeviceMesh& mesh) {
    const auto x = scatter_tensor(whole, 0, mesh, {Shard(2), Shard(3)});
    const auto v = scatter_tensor(w, 0, mesh, {Replicate(), Shard(0)});
    expect_full(at::batch_norm(x, v, v, {}, {}, true, 0.1, 1e-5, false),
                at::batch_norm(whole, w, w, {}, {}, true, 0.1, 1e-5, false));
    expect_full(at::group_norm(x, 2, v, v), at::group_norm(whole, 2, w, w));
    expect_full(at::layer_norm(x, {4}, v, v), at::layer_norm(whole, {4}, w, w));
  });
}

TEST(Levels, APlaceWithoutRowsReducesLikeTheOthers) {
  const Tensor whole = d({1, 4});
  on_a_grid([&](const DeviceMesh& mesh) {
    const auto x = scatter_tensor(whole, 0, mesh, {Shard(0), Shard(1)});
    expect_full(x.amax(0), whole.amax(0));
    expect_full(std::get<0>(x.max(0)), std::get<0>(whole.max(0)));
    expect_full(std::get<1>(x.max(0)), std::get<1>(whole.max(0)));
    expect_full(x.softmax(0), whole.softmax(0));
    expect_full(x.logsumexp(0), whole.logsumexp(0));
    expect_full(x.var(0, false), whole.var(0, false));
    expect_full(x.norm(2, 0), whole.norm(2, 0));
    expect_full(x.any(0), whole.any(0));
    expect_full(x.amax(), whole.amax());
  });
}

TEST(Levels, APlaceWithoutRowsViewsLikeTheOthers) {
  const Tensor whole = d({1, 4, 6});
  on_a_grid([&](const DeviceMesh& mesh) {
    const auto x = scatter_tensor(whole, 0, mesh, {Shard(0), Shard(1)});
    expect_full(x.flatten(0, 1), whole.flatten(0, 1));
    expect_full(x.reshape({2, 12}), whole.reshape({2, 12}));
  });
  run_ranks(2, [](World& world) {
    const auto x = scatter_tensor(d({0, 4, 6}), 0, world.mesh(), {Shard(1)});
    EXPECT_EQ(x.flatten(0, 1).sizes(), (at::IntArrayRef{0, 6}));
  });
}

/// A function of one tensor whose first place along "a" or "b" may have nothing: value and
/// gradient.
void expect_equal_with_empty_places(const Tensor& whole, const Placements& placements,
                                    const std::function<Tensor(const Tensor&)>& function) {
  const auto run = [&](Tensor x) {
    x.requires_grad_();
    const Tensor y = function(x);
    (y * y.detach().cos()).sum().backward();
    return std::pair(y.detach(), x.grad());
  };
  const auto want = run(whole.clone());
  const auto cuts = [&](const Placement& placement) {
    const int64_t n = whole.size(placement.dim());
    return std::vector<Partition>{{n, 0}, {0, n}, {1, n - 1}, {n - 1, 1}};
  };
  on_a_grid([&](const DeviceMesh& mesh) {
    for (const auto& first : cuts(placements[0])) {
      for (const auto& second : cuts(placements[1])) {
        const auto got = run(scatter_tensor(whole, 0, mesh, placements, {first, second}));
        expect_full(got.first, want.first);
        expect_full(got.second, want.second);
      }
    }
  });
}

TEST(Levels, SpreadWhereAPlaceHasNothing) {
  const Tensor whole = d({2, 3, 8});
  for (const Placements& placements : {Placements{Shard(1), Shard(2)}, {Shard(2), Shard(0)}}) {
    expect_equal_with_empty_places(whole, placements, [](const Tensor& x) { return x.var(); });
    expect_equal_with_empty_places(whole, placements, [](const Tensor& x) { return x.std(1); });
    expect_equal_with_empty_places(whole, placements, [](const Tensor& x) {
      return std::get<0>(at::var_mean(x, {1, 2}));
    });
  }
}

TEST(Levels, ViewsWhereAPlaceHasNothing) {
  expect_equal_with_empty_places(d({18, 4}), {Shard(0), Shard(1)}, [](const Tensor& x) {
    return x.view({6, 3, 4});
  });
  expect_equal_with_empty_places(d({6, 3, 4}), {Shard(0), Shard(2)}, [](const Tensor& x) {
    return x.reshape({1, 18, 4});
  });
  expect_equal_with_empty_places(d({2, 8, 6}), {Shard(1), Shard(2)}, [](const Tensor& x) {
    return x.transpose(1, 2).reshape({12, 8});
  });
}

TEST(Levels, ProductsAndNormalizationsWhereAPlaceHasNothing) {
  const Tensor w = d({5, 4});
  expect_equal_with_empty_places(d({2, 4, 6, 3}), {Shard(1), Shard(2)}, [&](const Tensor& x) {
    return at::einsum("bchw,dc->bdhw", {x, w});
  });
  expect_equal_with_empty_places(d({4, 3, 4, 5}), {Shard(0), Shard(3)}, [](const Tensor& x) {
    return at::instance_norm(x, {}, {}, {}, {}, true, 0.1, 1e-3, false);
  });
}

TEST(Levels, WhatIsMovedLiesAlikeAtEveryPlace) {
  const Tensor whole = d({7, 6, 4});
  const Tensor matrix = d({9, 5});
  const Tensor weight = d({5, 9});
  on_a_grid([&](const DeviceMesh& mesh) {
    const auto x = scatter_tensor(whole, 0, mesh, {Shard(0), Shard(1)});
    const auto y = std::get<0>(x.cummax(1));
    const auto want = std::get<0>(whole.cummax(1));
    expect_full((y + 0).sum(0), want.sum(0));
    expect_full(ShardTensor(y).redistribute({Replicate(), Replicate()}), want);
    const auto m = scatter_tensor(matrix, 0, mesh, {Shard(0), Shard(1)});
    const auto w = scatter_tensor(weight, 0, mesh, {Replicate(), Shard(1)});
    expect_full(at::matmul(m, w).sum(0), at::matmul(matrix, weight).sum(0));
  });
}

/// Cut along one mesh dim, pending along the other: what travels is the sum, not a contribution.
TEST(Levels, RowsOfPendingSumsTravelAsSums) {
  const Tensor whole = d({7, 4});
  const Tensor sums = whole.sum(1);
  const Tensor list = torch::tensor({6, 6, 0}, at::kLong);
  on_a_grid([&](const DeviceMesh& mesh) {
    const auto y = scatter_tensor(whole, 0, mesh, {Shard(0), Shard(1)}).sum(1);
    expect_full(y.gather(0, list).exp(), sums.gather(0, list).exp());
    expect_full(y.index_select(0, list).exp(), sums.index_select(0, list).exp());
    expect_full(at::index(y, {list}).exp(), at::index(sums, {list}).exp());
    expect_full(y.index_add(0, list, y.slice(0, 0, 3)).exp(),
                sums.index_add(0, list, sums.slice(0, 0, 3)).exp());
  });
}

TEST(Levels, TensorsOfAMeshAndOfItsDimDoNotMix) {
  on_a_grid([](const DeviceMesh& mesh) {
    const auto x = scatter_tensor(d({4, 6}), 0, mesh, {Shard(0), Shard(1)});
    const auto mask = scatter_tensor(d({4, 1}), 0, mesh["a"], {Shard(0)});
    EXPECT_THROW(mask + x, SpecMismatch);
  });
}

TEST(Levels, ARowOfAPendingMaximumIsSelected) {
  on_a_grid([](const DeviceMesh& mesh) {
    const Tensor mine = torch::full({1, 3}, static_cast<double>(mesh.rank()));
    const auto x = from_local(mine, mesh, {Shard(0), Partial(ReduceOp::Max)});
    expect_full(x.select(0, 0), torch::ones({3}));
    expect_full(x.select(0, 1), torch::full({3}, 3.));
  });
}

TEST(Levels, RollWantsOneShiftADim) {
  on_a_grid([](const DeviceMesh& mesh) {
    const auto x = scatter_tensor(d({4, 4}), 0, mesh, {Shard(1), Replicate()});
    EXPECT_THROW(at::roll(x, {1}, {0, 1}), c10::Error);
  });
}

// ---- one tensor dim cut by two mesh dims meets one that is not

using Binary = std::function<Tensor(const Tensor&, const Tensor&)>;

/// Value and both gradients of `op` where the arguments are grouped differently over the mesh.
void expect_regrouped(const Binary& op, const Tensor& a, const Tensor& b) {
  const auto run = [&](Tensor x, Tensor y) {
    x.requires_grad_();
    y.requires_grad_();
    const Tensor z = op(x, y);
    (z * z.detach().cos()).sum().backward();
    return std::vector<Tensor>{z.detach(), x.grad(), y.grad()};
  };
  const auto want = run(a.clone(), b.clone());
  const std::vector<Placements> ways{
      {Shard(0), Shard(0)}, {Shard(0), Replicate()}, {Replicate(), Shard(0)}, {Shard(0), Shard(1)}};
  on_a_grid([&](const DeviceMesh& mesh) {
    for (const auto& way_of_a : ways) {
      for (const auto& way_of_b : ways) {
        const auto got =
            run(scatter_tensor(a, 0, mesh, way_of_a), scatter_tensor(b, 0, mesh, way_of_b));
        for (size_t i = 0; i < want.size(); ++i) expect_full(got[i], want[i]);
        EXPECT_EQ(ShardTensor(got[1]).placements(), way_of_a);
        EXPECT_EQ(ShardTensor(got[2]).placements(), way_of_b);
      }
    }
  });
}

TEST(Regrouping, LetsTensorsMeetThatOtherMeshDimsCut) {
  const Tensor a = d({9, 4});
  expect_regrouped([](const Tensor& x, const Tensor& y) { return x + y * 2; }, a, d({9, 4}));
  expect_regrouped([](const Tensor& x, const Tensor& y) { return at::where(x > y, x, y); }, a,
                   d({9, 4}));
  expect_regrouped([](const Tensor& x, const Tensor& y) { return at::mse_loss(x, y); }, a,
                   d({9, 4}));
  expect_regrouped(
      [](const Tensor& x, const Tensor& y) {
        return at::cat({x, y}, 0);
      },
      a, d({5, 4}));
  expect_regrouped([](const Tensor& x, const Tensor& y) { return at::matmul(x, y.t()); }, a,
                   d({5, 4}));
}

TEST(Regrouping, LeavesTheTensorThatIsWrittenWhereItLies) {
  const Tensor a = d({9, 4});
  const Tensor b = d({9, 4});
  on_a_grid([&](const DeviceMesh& mesh) {
    for (const bool groups : {false, true}) {
      const Placements grouped{Shard(0), Shard(0)};
      const Placements apart{Replicate(), Shard(0)};
      auto x = scatter_tensor(a, 0, mesh, groups ? grouped : apart);
      const auto y = scatter_tensor(b, 0, mesh, groups ? apart : grouped);
      x.add_(y).mul_(2);
      expect_full(x, (a + b) * 2);
      EXPECT_EQ(ShardTensor(x).placements(), groups ? grouped : apart);
    }
  });
}

}  // namespace
}  // namespace shard::testing
