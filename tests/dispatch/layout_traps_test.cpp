// SPDX-License-Identifier: Apache-2.0
// Situations in which sharded tensors elsewhere lost rows, counted contributions twice, or took
// local numbers for global ones.
#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/parameters.h>
#include <shard/tensor.h>
#include <torch/torch.h>

#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;

std::vector<MeshDim> grid(int64_t a, int64_t b) { return {{"a", a}, {"b", b}}; }

TEST(Layout, GatheringPartsOfChosenSizesPutsThemSideBySide) {
  run_ranks(4, [](World& world) {
    const int64_t rank = world.rank();
    const Tensor mine = torch::arange(rank + 2).add(10 * rank).expand({2, -1});
    const ShardTensor x(from_local(mine, world.mesh(), {Shard(1)}));
    EXPECT_EQ(x.tensor().sizes(), (at::IntArrayRef{2, 14}));
    EXPECT_EQ(x.partition(1), (Partition{2, 3, 4, 5}));
    EXPECT_TRUE(torch::equal(x.full().narrow(1, offset_of(x.partition(1), rank), rank + 2), mine));
  });
}

TEST(Layout, TheGlobalSizeIsTheSumOfThePartsOnEveryRank) {
  run_ranks(4, [](World& world) {
    const auto x = from_local(torch::ones({world.rank() < 3 ? 3 : 1, 2}), world.mesh(), {Shard(0)});
    EXPECT_EQ(x.sizes(), (at::IntArrayRef{10, 2}));
    EXPECT_EQ((x * 2).sum().item<double>(), 40);
  });
}

TEST(Layout, ThereAndBackLeavesNoPadding) {
  run_ranks(4, [](World& world) {
    const Tensor whole = torch::randn({5, 10});
    const ShardTensor x(scatter_tensor(whole, 0, world.mesh(), {Replicate()}));
    const auto rows = x.redistribute({Shard(0)}, chunk_partition(5, 4));
    EXPECT_EQ(rows.partition(0), (Partition{2, 2, 1, 0}));
    EXPECT_TRUE(torch::equal(rows.redistribute({Replicate()}).local(), ShardTensor(x).local()));
  });
}

TEST(Layout, TwoMeshDimsOnOneTensorDimTileIt) {
  for (const int64_t n : {1, 2, 5, 7, 10}) {
    run_ranks(8, [&](World& world) {
      const auto x =
          scatter_tensor(torch::arange(n), 0, world.mesh(grid(2, 4)), {Shard(0), Shard(0)});
      const auto pieces = ShardTensor(x).partition(0);
      EXPECT_EQ(offset_of(pieces, 8), n);
      const auto local = ShardTensor(x).local();
      EXPECT_EQ(local.numel(), pieces[static_cast<size_t>(world.rank())]);
      if (local.numel() > 0) {
        EXPECT_EQ(local[0].item<int64_t>(), offset_of(pieces, world.rank()));
      }
      EXPECT_TRUE(torch::equal(ShardTensor(x + 0).full(), torch::arange(n)));
    });
  }
}

TEST(Layout, MeansAreOverTheGlobalCount) {
  run_ranks(2, [](World& world) {
    for (const auto& whole : {torch::arange(12.).view({3, 4}), torch::arange(4.).view({1, 4})}) {
      auto x = scatter_tensor(whole, 0, world.mesh(), {Shard(0)}).requires_grad_();
      const Tensor mean = x.mean();
      EXPECT_EQ(mean.item<double>(), whole.mean().item<double>());
      mean.backward();
      const Tensor gradient = ShardTensor(x.grad()).full();
      EXPECT_TRUE(
          gradient.allclose(torch::full_like(whole, 1. / static_cast<double>(whole.numel()))));
      EXPECT_NEAR(x.var().item<double>(), whole.var().item<double>(), 1e-6);
    }
  });
}

TEST(Layout, ViewsThatSplitAFlattenedGroupAreRight) {
  run_ranks(2, [](World& world) {
    const Tensor whole = torch::randn({4, 4, 4});
    const auto x = scatter_tensor(whole, 0, world.mesh(), {Shard(1)});
    EXPECT_TRUE(torch::equal(ShardTensor(x.view({8, 8})).full(), whole.view({8, 8})));
  });
  run_ranks(6, [](World& world) {
    const Tensor whole = torch::randn({12, 8});
    const auto x = scatter_tensor(whole, 0, world.mesh(), {Shard(0)});
    EXPECT_TRUE(torch::equal(ShardTensor(x.view({16, 6})).full(), whole.view({16, 6})));
  });
}

TEST(Layout, FlattenAndUnflattenADimThatTwoMeshDimsCut) {
  run_ranks(4, [](World& world) {
    const auto mesh = world.mesh(grid(2, 2));
    for (const int64_t batch : {1, 2}) {
      const Tensor whole = torch::randn({batch, 12, 3}, at::kDouble);
      auto x = scatter_tensor(whole, 0, mesh, {Shard(1), Shard(1)}).requires_grad_();
      const Tensor y = x.reshape({batch * 12, 3}).reshape({batch, 12, 3});
      EXPECT_TRUE(torch::equal(ShardTensor(y.detach()).full(), whole));
      (y * y).sum().backward();
      EXPECT_LE(relative_error(ShardTensor(x.grad()).full(), 2 * whole), 1e-14);
      EXPECT_EQ(ShardTensor(x.grad()).placements(), (Placements{Shard(1), Shard(1)}));
    }
  });
}

TEST(Layout, AnOddLengthStaysOdd) {
  run_ranks(2, [](World& world) {
    manual_seed(1);
    torch::nn::Sequential net(torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})),
                              torch::nn::Linear(4, 2));
    const Tensor whole = torch::randn({1, 3, 4});
    const auto y = net->forward(scatter_tensor(whole, 0, world.mesh(), {Shard(1)}));
    EXPECT_EQ(y.sizes(), (at::IntArrayRef{1, 3, 2}));
    EXPECT_LE(relative_error(ShardTensor(y.detach()).full(), net->forward(whole)), 1e-6);
  });
}

TEST(PendingSum, ANumberIsAddedOnce) {
  run_ranks(2, [](World& world) {
    const auto x = scatter_tensor(torch::arange(10.), 0, world.mesh(), {Shard(0)});
    EXPECT_EQ((x.sum() + 10).item<double>(), 55);
    EXPECT_EQ((10 + x.sum()).item<double>(), 55);
    EXPECT_EQ((x.sum() + torch::tensor(10.)).item<double>(), 55);
    EXPECT_EQ((torch::tensor(10.) + x.sum()).item<double>(), 55);
    EXPECT_EQ(x.sum().add_(10).item<double>(), 55);
    EXPECT_EQ(x.sum().add_(torch::tensor(10.)).item<double>(), 55);
    EXPECT_EQ(x.sum().sub_(torch::tensor(5.), 2).item<double>(), 35);
    EXPECT_EQ(x.sum().add_(x.narrow(0, 9, 1).squeeze(0)).item<double>(), 54);
    for (int i = 1; i <= 3; ++i) EXPECT_EQ((i * x.sum()).item<double>(), 45 * i);
    EXPECT_EQ((-5 * x.sum()).item<double>(), -225);
  });
}

TEST(PendingSum, IsWholeWhenItIsUsedAtOnce) {
  run_ranks(2, [](World& world) {
    const auto x = scatter_tensor(torch::arange(10.), 0, world.mesh(), {Shard(0)});
    const auto sum = [&] { return x.sum(); };
    EXPECT_EQ(ShardTensor(sum().to(at::kDouble)).full().item<double>(), 45);
    EXPECT_EQ(sum().to(at::kLong).item<int64_t>(), 45);
    EXPECT_EQ(sum().clone().item<double>(), 45);
    EXPECT_EQ(ShardTensor(sum()).full().item<double>(), 45);
    Tensor copy = torch::zeros({});
    copy.copy_(sum());
    EXPECT_EQ(copy.item<double>(), 45);
    EXPECT_EQ(sum().exp().log().item<float>(), torch::tensor(45.).exp().log().item<float>());
    EXPECT_EQ((sum() > 40).item<bool>(), true);
  });
}

TEST(PendingSum, NormsAreOfTheSum) {
  run_ranks(2, [](World& world) {
    const Tensor mine = world.is_root() ? torch::tensor({1., 3.}) : torch::tensor({2., 1.});
    const auto x = from_local(mine, world.mesh(), {Partial()});
    EXPECT_EQ(x.norm().item<double>(), 5);
    EXPECT_EQ(at::linalg_vector_norm(x, std::numeric_limits<double>::infinity()).item<double>(), 4);
  });
}

TEST(PendingSum, WritingItByAnOpThatIsNotLinearWritesTheTotal) {
  run_ranks(2, [](World& world) {
    auto x = scatter_tensor(torch::full({144}, 1.), 0, world.mesh(), {Shard(0)}).sum();
    const auto view = x.view({1});
    EXPECT_EQ(x.clamp_max(2).item<double>(), 2);
    EXPECT_EQ(x.item<double>(), 144);
    x.clamp_(at::nullopt, 2);
    EXPECT_EQ(x.item<double>(), 2);
    EXPECT_EQ(view.item<double>(), 2);
  });
}

TEST(GlobalAnswers, IndicesAndValuesOfAMaximumAreGlobal) {
  run_ranks(2, [](World& world) {
    const auto x = scatter_tensor(torch::tensor({3., 8., 10., 5.}), 0, world.mesh(), {Shard(0)});
    EXPECT_EQ(x.argmax().item<int64_t>(), 2);
    EXPECT_EQ(std::get<1>(x.max(0)).item<int64_t>(), 2);
    const auto ones = scatter_tensor(torch::ones({8, 8}), 0, world.mesh(), {Shard(0)});
    EXPECT_FLOAT_EQ(ones.norm().item<float>(), 8);
  });
}

TEST(Gradients, OfAWeightUsedOnReplicatedActivationsAreComplete) {
  const Tensor whole = torch::randn({4, 6}, at::kDouble);
  const Tensor w = torch::randn({6}, at::kDouble).requires_grad_();
  torch::layer_norm(whole, {6}, w).square().sum().backward();
  run_ranks(4, [&](World& world) {
    const auto x = scatter_tensor(whole, 0, world.mesh(grid(2, 2)), {Shard(0), Replicate()});
    const Tensor own = w.detach().clone().requires_grad_();
    torch::layer_norm(x, {6}, own).square().sum().backward();
    EXPECT_LE(relative_error(own.grad(), w.grad()), 1e-13);
  });
}

TEST(Gradients, OfShardedAndPlainParametersAreClippedTogether) {
  const Tensor a = torch::randn({6, 2}, at::kDouble);
  const Tensor b = torch::randn({3}, at::kDouble);
  for (const double p : {1., 2., std::numeric_limits<double>::infinity()}) {
    const auto clipped = [&](Tensor first, Tensor second) {
      first.requires_grad_();
      second.requires_grad_();
      ((first * first).sum() + (second * second).sum() * 3).backward();
      const double norm = torch::nn::utils::clip_grad_norm_({first, second}, 0.5, p);
      return std::tuple(norm, first.grad(), second.grad());
    };
    const auto [want, want_a, want_b] = clipped(a.clone(), b.clone());
    run_ranks(3, [&, want = want, want_a = want_a, want_b = want_b](World& world) {
      const auto x = scatter_tensor(a, 0, world.mesh(), {Shard(0)}, {1, 0, 5});
      const auto [norm, gradient, plain] = clipped(x, b.clone());
      EXPECT_NEAR(norm, want, 1e-12);
      EXPECT_LE(relative_error(ShardTensor(gradient).full(), want_a), 1e-12);
      EXPECT_LE(relative_error(plain, want_b), 1e-12);
    });
  }
}

/// One norm of parameters that lie differently over one mesh. Over two meshes there is none: every
/// rank refuses it and leaves the gradients alone.
TEST(Gradients, AreClippedTogetherOnOneMeshOnly) {
  const Tensor a = torch::randn({6, 2}, at::kDouble);
  const Tensor b = torch::randn({3, 5}, at::kDouble);
  const auto clipped = [](Tensor first, Tensor second) {
    first.requires_grad_();
    second.requires_grad_();
    (first * first).sum().backward();
    (second * second).sum().backward();
    torch::nn::utils::clip_grad_norm_({first, second}, 0.5);
    return std::pair(first.grad(), second.grad());
  };
  const auto want = clipped(a.clone(), b.clone());
  run_ranks(4, [&](World& world) {
    const auto mesh = world.mesh(grid(2, 2));
    const auto x = scatter_tensor(a, 0, mesh, {Shard(0), Shard(1)});
    const auto got = clipped(x, scatter_tensor(b, 0, mesh, {Replicate(), Shard(1)}));
    EXPECT_LE(relative_error(ShardTensor(got.first).full(), want.first), 1e-12);
    EXPECT_LE(relative_error(ShardTensor(got.second).full(), want.second), 1e-12);

    const auto y = scatter_tensor(b, 0, mesh["b"], {Shard(1)});
    EXPECT_THROW(clipped(x.detach().clone(), y), SpecMismatch);
    EXPECT_LE(relative_error(ShardTensor(y.grad()).full(), 2 * b), 0);
  });
}

TEST(Gradients, OfAMeanLossDoNotDependOnTheShapeOfTheMesh) {
  const Tensor whole = torch::randn({4, 2, 8, 6}, at::kDouble);
  const auto train = [](const Tensor& x) {
    manual_seed(4);
    torch::nn::Conv2d net(torch::nn::Conv2dOptions(2, 2, 3).padding(1));
    net->to(at::kDouble);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      torch::mse_loss(net->forward(x), x * 2).backward();
      optimizer.step();
    }
    return net->weight.detach();
  };
  Tensor want;
  run_ranks(1, [&](World&) { want = train(whole); });
  for (const auto& [ddp, domain] : {std::pair{1, 4}, {2, 2}, {4, 1}}) {
    run_ranks(4, [&, ddp = ddp, domain = domain](World& world) {
      const auto x = scatter_tensor(whole, 0, world.mesh(grid(ddp, domain)), {Shard(0), Shard(2)});
      EXPECT_LE(relative_error(train(x), want), 1e-12) << ddp << "x" << domain;
    });
  }
}

}  // namespace
}  // namespace shard::testing
