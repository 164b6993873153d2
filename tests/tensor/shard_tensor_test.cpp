// SPDX-License-Identifier: Apache-2.0
// Making ShardTensors and reading them.
#include <gtest/gtest.h>
#include <shard/primitives.h>
#include <shard/shard.h>
#include <torch/torch.h>

#include <sstream>

#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;

TEST(Scatter, OnlyTheSourceNeedsTheTensor) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](World& world) {
      const auto whole = torch::arange(30).view({5, 6});
      const int source = ranks - 1;
      const Tensor mine = world.rank() == source ? whole : Tensor();
      for (const auto& [name, partition] : splits(5, ranks)) {
        const Tensor x = scatter_tensor(mine, source, world.mesh(), {Shard(0)}, partition);
        EXPECT_EQ(x.sizes(), whole.sizes());
        EXPECT_EQ(raw_local(x).size(0), partition[static_cast<size_t>(world.rank())]);
        EXPECT_TRUE(ShardTensor(x).full().equal(whole)) << name;
      }
      EXPECT_TRUE(ShardTensor(scatter_tensor(mine, source, world.mesh(), {Replicate()}))
                      .full()
                      .equal(whole));
    });
  }
}

/// Sizes at which cutting into pieces of one size leaves the last ranks with nothing: fewer rows
/// than ranks, one more, 5 over 4 and 9 over 8.
TEST(Scatter, RowsThatDoNotReachEveryRank) {
  for (const int ranks : {2, 3, 4, 8}) {
    run_ranks(ranks, [&](World& world) {
      const auto mesh = world.mesh();
      for (const int64_t n : {0, 1, ranks - 1, ranks, ranks + 1}) {
        const auto whole = torch::arange(2 * n).view({n, 2});
        for (const Partition& partition : {Partition{}, chunk_partition(n, ranks)}) {
          const ShardTensor x(scatter_tensor(whole, 0, mesh, {Shard(0)}, partition));
          EXPECT_TRUE(x.full().equal(whole)) << n << " over " << ranks;
          EXPECT_TRUE(ShardTensor(x.tensor() * 2 + 1).full().equal(whole * 2 + 1));
        }
      }
    });
  }
}

TEST(Scatter, ErrorsAreTheSameOnEveryRank) {
  run_ranks(3, [](World& world) {
    const auto mesh = world.mesh();
    const auto whole = world.is_root() ? torch::ones({4, 4}) : Tensor();
    EXPECT_THROW(scatter_tensor(whole, 0, mesh, {Shard(2)}), SpecMismatch);
    EXPECT_THROW(scatter_tensor(whole, 0, mesh, {Shard(0)}, {1, 1, 1}), SpecMismatch);
    EXPECT_THROW(scatter_tensor(whole, 3, mesh, {Shard(0)}), ConfigError);
    EXPECT_THROW(scatter_tensor(Tensor(), 0, mesh, {Shard(0)}), SpecMismatch);
    EXPECT_TRUE(
        ShardTensor(scatter_tensor(whole, 0, mesh, {Shard(0)})).full().equal(torch::ones({4, 4})));
  });
}

TEST(FromLocal, UnevenPartsAddUpOnEveryRank) {
  run_ranks(4, [](World& world) {
    // Rank r holds value 10 * r + column.
    const auto columns = world.rank() + 2;
    const auto local = (torch::arange(columns) + 10 * world.rank()).expand({2, columns}).clone();
    const ShardTensor x(from_local(local, world.mesh(), {Shard(1)}));
    EXPECT_EQ(x.tensor().sizes(), (std::vector<int64_t>{2, 14}));
    EXPECT_EQ(x.spec().partition(), (Partition{2, 3, 4, 5}));
    EXPECT_EQ(x.spec().offset(2), 5);
    std::vector<int64_t> want;
    for (int r = 0; r < 4; ++r) {
      for (int c = 0; c < r + 2; ++c) want.push_back(10 * r + c);
    }
    EXPECT_TRUE(x.full()[0].equal(torch::tensor(want)));
  });
}

TEST(FromLocal, PartsThatDoNotFitAreEveryRanksError) {
  run_ranks(3, [](World& world) {
    const auto mesh = world.mesh();
    const auto wide = torch::ones({2, world.rank() == 1 ? 5 : 4});
    EXPECT_THROW(from_local(wide, mesh, {Shard(0)}), SpecMismatch);
    const auto typed = torch::ones({2, 4}, world.rank() == 2 ? at::kDouble : at::kFloat);
    EXPECT_THROW(from_local(typed, mesh, {Shard(0)}), SpecMismatch);
    EXPECT_THROW(from_local(world.rank() == 0 ? Tensor() : torch::ones({2}), mesh, {Shard(0)}),
                 SpecMismatch);
  });
}

TEST(FromLocal, WithGivenPiecesCommunicatesNothing) {
  run_ranks(2, [](World& world) {
    const auto mesh = world.mesh();
    const CommCounter counter;
    const auto local = torch::ones({world.rank() == 0 ? 3 : 1, 2});
    const Tensor x = from_local(local, mesh, {Shard(0)}, Partition{3, 1});
    EXPECT_EQ(counter.calls(), 0);
    EXPECT_EQ(x.size(0), 4);
  });
}

TEST(FromLocal, IsDifferentiable) {
  run_ranks(2, [](World& world) {
    auto local = torch::ones({3, 2}).requires_grad_();
    const Tensor x = from_local(local, world.mesh(), {Shard(0)});
    (x * x).sum().backward();
    EXPECT_LE(relative_error(local.grad(), torch::full({3, 2}, 2.0f)), 0);
  });
}

TEST(Local, ReturnsThePartAndCarriesTheGradient) {
  run_ranks(3, [](World& world) {
    auto x = scatter_tensor(torch::arange(12, at::kFloat).view({6, 2}), 0, world.mesh(), {Shard(0)})
                 .requires_grad_();
    const auto local = ShardTensor(x).local();
    EXPECT_FALSE(is_shard_tensor(local));
    (local * (world.rank() + 1)).sum().backward();
    EXPECT_EQ(raw_local(x.grad())[0][0].item<float>(), static_cast<float>(world.rank() + 1));
  });
}

TEST(Local, OfAPartialTensorThatRequiresGradIsRefused) {
  run_ranks(2, [](World& world) {
    auto x = scatter_tensor(torch::ones({4}), 0, world.mesh(), {Shard(0)}).requires_grad_();
    EXPECT_THROW(ShardTensor(x.sum()).local(), SpecMismatch);
  });
}

TEST(Handles, RefusePlainAndUndefinedTensors) {
  EXPECT_THROW(ShardTensor(torch::ones({2})), SpecMismatch);
  EXPECT_THROW(ShardTensor{Tensor()}, SpecMismatch);
}

TEST(Printing, ShowsSpecAndLocalPart) {
  run_ranks(2, [](World& world) {
    const auto x = scatter_tensor(torch::ones({4, 2}), 0, world.mesh(), {Shard(0)}, {3, 1});
    std::ostringstream out;
    out << ShardTensor(x);
    EXPECT_NE(out.str().find("Shard(0) of [4, 2] in pieces [3, 1]"), std::string::npos)
        << out.str();
  });
}

TEST(Printing, OfTheBareTensorAndSavingItSayWhatToDo) {
  run_ranks(2, [](World& world) {
    const auto x = scatter_tensor(torch::ones({4, 2}), 0, world.mesh(), {Shard(0)});
    std::ostringstream out;
    for (const auto& attempt : std::vector<std::function<void()>>{
             [&] { out << x; }, [&] { torch::save(x, out); }, [&] { (void)x.data_ptr<float>(); }}) {
      try {
        attempt();
        ADD_FAILURE() << "expected an error";
      } catch (const std::exception& error) {
        EXPECT_NE(std::string(error.what()).find("shard"), std::string::npos) << error.what();
      }
    }
  });
}

TEST(Factories, AllocateOnlyThePart) {
  run_ranks(2, [](World& world) {
    const auto x = shard::zeros({100, 3}, world.mesh(), {Shard(0)}, at::kDouble, {90, 10});
    EXPECT_EQ(raw_local(x).size(0), world.rank() == 0 ? 90 : 10);
    EXPECT_EQ(x.scalar_type(), at::kDouble);
    EXPECT_EQ(x.sum().item<double>(), 0);
  });
}

TEST(Parameters, AreBroadcastFromTheSource) {
  run_ranks(3, [](World& world) {
    torch::nn::Linear layer(3, 2);
    {
      const torch::NoGradGuard guard;
      layer->weight.fill_(world.rank());
    }
    broadcast_parameters(*layer, world.mesh(), 1);
    EXPECT_EQ(layer->weight.sum().item<double>(), 6);
  });
}

}  // namespace
}  // namespace shard::testing
