// SPDX-License-Identifier: Apache-2.0
// Random numbers on sharded tensors are those of one device.
#include <ATen/ops/normal.h>
#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/memory.h>
#include <shard/random.h>
#include <shard/tensor.h>
#include <torch/nn/modules/dropout.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>

#include "support/rank_errors.h"

namespace shard::testing {
namespace {

using at::Tensor;

/// Replicated tensors, plain ones and sharded ones in turn leave all ranks at one state.
TEST(RandomNumbers, LeaveEveryRankWhereOneDeviceWouldBe) {
  const auto draw = [](const Tensor& sharded, const Tensor& plain) {
    torch::manual_seed(3);
    torch::dropout(sharded, 0.5, true);
    plain.uniform_();
    torch::randn_like(sharded);
    return torch::rand({5});
  };
  const Tensor expected = draw(torch::ones({7, 5}), torch::ones({3}));
  run_ranks(3, [&](World& world) {
    const auto mesh = world.mesh({{"domain", -1}});
    for (const Partition& cut : {Partition{3, 2, 2}, Partition{0, 7, 0}, Partition{6, 0, 1}}) {
      const Tensor x = zeros({7, 5}, mesh, {Shard(0)}, {}, cut);
      EXPECT_TRUE(at::equal(draw(x, torch::ones({3})), expected));
    }
  });
}

TEST(RandomNumbers, NeedMemoryForThePartOnly) {
  constexpr int64_t kRows = 1 << 16;
  run_ranks(4, [&](World& world) {
    const auto mesh = world.mesh({{"domain", -1}});
    const Tensor x = zeros({kRows, 64}, mesh, {Shard(0)});
    MemoryAccount account = MemoryAccount::current();
    account.reset_peak();
    x.normal_();
    torch::dropout(x, 0.5, true);
    EXPECT_LT(account.largest(), kRows * 64 * 4 * 6 / 10);
  });
}

TEST(RandomNumbers, MakeTensorsOfWhichARankHasItsPart) {
  torch::manual_seed(4);
  const Tensor uniform = torch::rand({7, 5}, torch::kDouble);
  const Tensor normal = torch::randn({7, 5}, torch::kDouble);
  run_ranks(3, [&](World& world) {
    const auto mesh = world.mesh({{"domain", -1}});
    for (const Placements& placements : {Placements{Shard(0)}, {Shard(1)}, {Replicate()}}) {
      torch::manual_seed(4);
      const Tensor x = rand({7, 5}, mesh, placements, torch::kDouble);
      const Tensor y =
          randn({7, 5}, mesh, placements, at::TensorOptions(torch::kDouble).requires_grad(true));
      EXPECT_EQ(ShardTensor(x).placements(), placements);
      EXPECT_TRUE(at::equal(ShardTensor(x).full(), uniform)) << placements[0];
      EXPECT_TRUE(at::equal(ShardTensor(y).full(), normal)) << placements[0];
      EXPECT_TRUE(y.is_leaf() && y.requires_grad() && !x.requires_grad());
    }
    const Tensor cut = randn({7}, mesh, {Shard(0)}, {}, {0, 6, 1});
    EXPECT_EQ(ShardTensor(cut).partition(0), (Partition{0, 6, 1}));
    EXPECT_THROW(rand({7}, mesh, {Partial()}), SpecMismatch);
  });
}

TEST(RandomNumbers, OfAPendingSumAreRefused) {
  run_ranks(2, [](World& world) {
    const auto mesh = world.mesh({{"domain", -1}});
    const Tensor x = from_local(torch::ones({4}), mesh, {Partial()});
    EXPECT_THROW(x.uniform_(), SpecMismatch);
  });
}

TEST(RandomNumbers, OfWrongParametersAreRefusedOnEveryRank) {
  struct Call {
    const char* refusal;
    std::function<void(const Tensor&)> draw;
  };
  const std::vector<Call> calls{
      {"bernoulli_ expects p", [](const Tensor& x) { x.bernoulli_(2); }},
      {"normal expects std", [](const Tensor& x) { x.normal_(0, -1); }},
      {"normal expects std", [](const Tensor& x) { at::normal(x, -1); }},
      {"uniform_ expects", [](const Tensor& x) { x.uniform_(2, 1); }},
      {"geometric_ expects", [](const Tensor& x) { x.geometric_(0); }},
      {"exponential_ expects", [](const Tensor& x) { x.exponential_(-1); }},
      {"log_normal_ expects", [](const Tensor& x) { x.log_normal_(0, -1); }},
      {"cauchy_ expects", [](const Tensor& x) { x.cauchy_(0, -1); }},
      {"random_ expects", [](const Tensor& x) { x.random_(5, 2); }},
      {"random_ expects", [](const Tensor& x) { x.random_(-3); }},
      {"random_ expects", [](const Tensor& x) { torch::randint_like(x, 5, 2); }},
      {"out of bounds", [](const Tensor& x) { x.to(at::kByte).random_(0, 1000); }}};
  for (const auto& [refusal, draw] : calls) {
    expect_same_error<c10::Error>(3, refusal, [&draw = draw](const DeviceMesh& mesh) {
      const Tensor x = zeros({7}, mesh, {Shard(0)}, {}, {0, 7, 0});
      x.bernoulli_(0.5);  // its kernel is known from here on
      return [&draw, x] { draw(x); };
    });
  }
}

TEST(RandomNumbers, OfNegativeWidthsAreRefusedOnEveryRank) {
  std::atomic<int> refused = 0;
  run_ranks(3, [&](World& world) {
    const Tensor x = scatter_tensor(torch::tensor({1., -1.}), 0, world.mesh(), {Shard(0)});
    for (const bool has_mean : {false, true}) {
      try {
        has_mean ? at::normal(x, x) : at::normal(0., x);
      } catch (const SpecMismatch&) {
        ++refused;
      }
    }
  });
  EXPECT_EQ(refused, 6);
}

TEST(RandomNumbers, AroundAMeanHaveItsDtype) {
  const auto draw = [](const Tensor& mean, const Tensor& std) {
    torch::manual_seed(6);
    return std::vector<Tensor>{at::normal(mean, 0.3), at::normal(0.1, std), at::normal(mean, std)};
  };
  for (const auto mean_dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const auto std_dtype : {at::kFloat, at::kDouble}) {
      const Tensor mean = torch::linspace(-2, 3, 300, mean_dtype);
      const Tensor std = torch::linspace(0.1, 3, 300, std_dtype);
      const auto expected = draw(mean, std);
      run_ranks(3, [&](World& world) {
        const Tensor cut_mean = scatter_tensor(mean, 0, world.mesh(), {Shard(0)});
        const Tensor cut_std = scatter_tensor(std, 0, world.mesh(), {Shard(0)});
        for (const auto& [m, s] :
             {std::pair{cut_mean, cut_std}, {cut_mean, std}, {mean, cut_std}}) {
          const auto drawn = draw(m, s);
          for (size_t i = 0; i < drawn.size(); ++i) {
            const Tensor full = is_shard_tensor(drawn[i]) ? ShardTensor(drawn[i]).full() : drawn[i];
            EXPECT_TRUE(at::equal(full, expected[i])) << i << mean_dtype << std_dtype;
            EXPECT_EQ(full.scalar_type(), expected[i].scalar_type());
          }
        }
      });
    }
  }
}

TEST(RandomNumbers, WhoseCountDependsOnValuesAreRefused) {
  run_ranks(2, [](World& world) {
    const auto mesh = world.mesh({{"domain", -1}});
    const Tensor x = zeros({4}, mesh, {Shard(0)});
    EXPECT_THROW(torch::poisson(x), MissingShardPatch);
  });
}

}  // namespace
}  // namespace shard::testing
