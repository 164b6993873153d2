// SPDX-License-Identifier: Apache-2.0
// What the gradient of a sum over ranks means: that of one number, the sum of what all ranks make
// of the result, by finite differences.
#include <gtest/gtest.h>
#include <shard/launch.h>
#include <shard/primitives.h>
#include <shard/testing.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensors contributions(int ranks) {
  torch::manual_seed(9);
  Tensors result;
  for (int r = 0; r < ranks; ++r) result.push_back(torch::randn({4}, at::kDouble) * 0.3);
  return result;
}

/// d number(x) / d x[rank], by central differences.
Tensor differences(const std::function<Tensor(const Tensors&)>& number, const Tensors& x,
                   size_t rank) {
  constexpr double kStep = 1e-5;
  const auto moved = [&](int64_t i, double by) {
    Tensors at = x;
    at[rank] = at[rank].clone();
    at[rank][i] += by;
    return number(at);
  };
  Tensors slopes;
  for (int64_t i = 0; i < x[rank].size(0); ++i) {
    slopes.push_back((moved(i, kStep) - moved(i, -kStep)) / (2 * kStep));
  }
  return torch::stack(slopes);
}

Tensor sum_of(const Tensors& x) { return torch::stack(x).sum(0); }
Tensor square_sum(const Tensor& t) { return (t * t.tanh()).sum(); }

TEST(AllReduce, HasTheGradientOfWhatAllRanksMakeOfIt) {
  for (const int ranks : {1, 2, 3}) {
    const Tensors x = contributions(ranks);
    const auto use = [](const Tensor& sum, int64_t rank) {
      return square_sum(sum * static_cast<double>(rank + 1));
    };
    const auto number = [&](const Tensors& at) {
      Tensor total = torch::zeros({}, at::kDouble);
      for (int64_t r = 0; r < ranks; ++r) total = total + use(sum_of(at), r);
      return total;
    };
    run_ranks(ranks, [&](World& world) {
      const auto rank = static_cast<size_t>(world.rank());
      const Tensor own = x[rank].clone().requires_grad_();
      use(all_reduce(own, world.mesh()), world.rank()).backward();
      EXPECT_LE(relative_error(own.grad(), differences(number, x, rank)), 1e-8);
    });
  }
}

TEST(CommonSum, HasTheGradientOfWhatOneRankMakesOfIt) {
  for (const int ranks : {1, 2, 3}) {
    const Tensors x = contributions(ranks);
    const auto number = [](const Tensors& at) { return square_sum(sum_of(at)); };
    run_ranks(ranks, [&](World& world) {
      const auto rank = static_cast<size_t>(world.rank());
      const Tensor own = x[rank].clone().requires_grad_();
      square_sum(common_sum(own, world.mesh())).backward();
      EXPECT_LE(relative_error(own.grad(), differences(number, x, rank)), 1e-8);
    });
  }
}

/// The same question for whole tensors: a loss of a ShardTensor is one number.
TEST(Loss, OfAShardTensorHasTheGradientOfOneNumber) {
  const Tensor whole = contributions(1)[0];
  const auto number = [](const Tensors& at) { return (at[0] * at[0].sum()).tanh().sum(); };
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](World& world) {
      Tensor x = scatter_tensor(whole, 0, world.mesh(), {Shard(0)}).requires_grad_();
      number({x}).backward();
      EXPECT_LE(relative_error(ShardTensor(x.grad()).full(), differences(number, {whole}, 0)),
                1e-8);
    });
  }
}

}  // namespace
}  // namespace shard::testing
