// SPDX-License-Identifier: Apache-2.0
// No rank holds a tensor of the global size, forward or backward, also not inside LibTorch's own
// formulas; and nothing grows from step to step.
#include <gtest/gtest.h>
#include <shard/shard.h>
#include <torch/torch.h>

#include "support/sharded_check.h"

namespace shard::testing {
namespace {

namespace F = torch::nn::functional;
using at::Tensor;

struct Case {
  const char* name;
  std::function<Tensor(const Tensor&)> op;
  bool has_workspace = false;  ///< LibTorch's kernel allocates more than its inputs and outputs
};

Tensor lines() { return torch::arange(63, -1, -1, at::kLong); }

const std::vector<Case>& cases() {
  static const std::vector<Case> list{
      {"sum", [](const Tensor& x) { return x.sum(); }},
      {"mean", [](const Tensor& x) { return x.mean(); }},
      {"mean over the sharded dim", [](const Tensor& x) { return x.mean(2).pow(2).sum(); }},
      {"mse_loss", [](const Tensor& x) { return torch::mse_loss(x, x.detach() * 2); }},
      {"select", [](const Tensor& x) { return x.select(1, 1).pow(2).sum(); }},
      {"select of the sharded dim", [](const Tensor& x) { return x.select(2, 5).pow(2).sum(); }},
      {"select of a line",
       [](const Tensor& x) { return x.select(1, 1).select(2, 5).cumsum(1).sum(); }},
      {"slice of the sharded dim", [](const Tensor& x) { return x.slice(2, 3, 60).pow(2).sum(); }},
      {"slice of another dim", [](const Tensor& x) { return x.slice(3, 3, 60).pow(2).sum(); }},
      {"relu", [](const Tensor& x) { return x.relu().pow(2).sum(); }},
      {"expand",
       [](const Tensor& x) {
         return x.select(1, 0).unsqueeze(1).expand({1, 4, 64, 64}).mul(x).sum();
       }},
      {"view and permute",
       [](const Tensor& x) {
         return x.view({4, 64, 64}).permute({1, 2, 0}).contiguous().pow(2).sum();
       }},
      {"conv2d",
       [](const Tensor& x) {
         return at::conv2d(x, torch::ones({4, 4, 3, 3}), {}, 1, 1).pow(2).sum();
       },
       true},
      {"group_norm", [](const Tensor& x) { return at::group_norm(x, 2).pow(3).sum(); }},
      {"layer_norm", [](const Tensor& x) { return at::layer_norm(x, {64}).pow(3).sum(); }},
      {"softmax", [](const Tensor& x) { return x.softmax(3).pow(2).sum(); }},
      {"max_pool", [](const Tensor& x) { return at::max_pool2d(x, 2).pow(2).sum(); }},
      {"avg_pool", [](const Tensor& x) { return at::avg_pool2d(x, 2).pow(2).sum(); }},
      {"pad",
       [](const Tensor& x) {
         return F::pad(x, F::PadFuncOptions({1, 1, 1, 1})).pow(2).sum();
       }},
      {"cat",
       [](const Tensor& x) {
         return at::cat({x.slice(1, 0, 2), x.slice(1, 2, 4)}, 1).pow(2).sum();
       }},
      {"in-place on a slice",
       [](const Tensor& x) {
         auto y = x * 1;
         y.slice(2, 5, 50).mul_(2);
         return y.pow(2).sum();
       }},
      {"max over the sharded dim",
       [](const Tensor& x) { return std::get<0>(x.max(2)).pow(2).sum(); }},
      {"std", [](const Tensor& x) { return x.std(); }},
      {"norm", [](const Tensor& x) { return x.norm(); }},
      {"index_select of another dim",
       [](const Tensor& x) { return x.index_select(3, lines()).pow(2).sum(); }},
      {"an index list on another dim",
       [](const Tensor& x) {
         return at::index(x, {{}, {}, {}, lines()}).pow(2).sum();
       }},
      {"gather along another dim",
       [](const Tensor& x) { return x.gather(3, x.detach().argsort(int64_t{3})).pow(2).sum(); }},
      {"topk along another dim",
       [](const Tensor& x) { return std::get<0>(x.topk(60, 3)).pow(2).sum(); }},
      {"sort along another dim",
       [](const Tensor& x) { return std::get<0>(x.sort(3)).pow(2).sum(); }},
      {"kthvalue along another dim",
       [](const Tensor& x) { return std::get<0>(x.kthvalue(30, 3)).pow(2).sum(); }},
      {"mode along another dim", [](const Tensor& x) { return std::get<0>(x.mode(3)).sum(); }},
      {"bilinear to the same size",
       [](const Tensor& x) {
         return at::upsample_bilinear2d(x, {64, 64}, false).pow(2).sum();
       }},
      {"bilinear to a slightly larger size",
       [](const Tensor& x) {
         return at::upsample_bilinear2d(x, {67, 66}, false).pow(2).sum();
       }},
      {"reflection pad",
       [](const Tensor& x) {
         return at::reflection_pad2d(x, {1, 1, 1, 1}).pow(2).sum();
       }},
      {"circular pad",
       [](const Tensor& x) {
         return F::pad(x, F::PadFuncOptions({1, 1, 1, 1}).mode(torch::kCircular)).pow(2).sum();
       }},
      {"cross_entropy",
       [](const Tensor& x) { return at::cross_entropy_loss(x, x.detach().argmax(1)); }},
      {"batch_norm",
       [](const Tensor& x) {
         return at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false).pow(3).sum();
       }},
  };
  return list;
}

/// The largest allocation of the op on a tensor, forward and backward.
int64_t largest_allocation(const Case& c, Tensor x) {
  auto y = x.requires_grad_() * 1;
  auto& account = MemoryAccount::current();
  account.reset_peak();
  c.op(y).backward();
  return account.largest();
}

/// What plain LibTorch allocates for the whole, its workspaces included, and at least the tensor
/// itself.
std::vector<int64_t> plain_allocations(const Tensor& whole) {
  std::vector<int64_t> result;
  run_ranks(1, [&](World&) {
    for (const auto& c : cases()) {
      result.push_back(
          std::max(largest_allocation(c, whole.clone()), static_cast<int64_t>(whole.nbytes())));
    }
  });
  return result;
}

TEST(Memory, NoAllocationOfGlobalSizeForwardOrBackward) {
  const auto whole = torch::randn({1, 4, 64, 64});
  const auto plain = plain_allocations(whole);
  run_ranks(4, [&](World& world) {
    const auto mesh = world.mesh();
    for (size_t i = 0; i < cases().size(); ++i) {
      const auto largest =
          largest_allocation(cases()[i], scatter_tensor(whole, 0, mesh, {Shard(2)}));
      EXPECT_LT(static_cast<double>(largest), 0.6 * static_cast<double>(plain[i]))
          << cases()[i].name;
      if (!cases()[i].has_workspace) {
        EXPECT_LT(largest, static_cast<int64_t>(whole.nbytes())) << cases()[i].name;
      }
    }
  });
}

TEST(Memory, DoesNotGrowOverSteps) {
  const auto whole = torch::randn({1, 4, 32, 32});
  run_ranks(2, [&](World& world) {
    torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1)),
                              torch::nn::GroupNorm(2, 4), torch::nn::ReLU(),
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1)));
    const auto x = scatter_tensor(whole, 0, world.mesh(), {Shard(2)});
    torch::optim::Adam adam(net->parameters());
    const auto step = [&] {
      adam.zero_grad();
      torch::mse_loss(net->forward(x), x).backward();
      adam.step();
    };
    for (int i = 0; i < 20; ++i) step();
    const auto live = MemoryAccount::current().live();
    for (int i = 0; i < 1000; ++i) step();
    EXPECT_EQ(MemoryAccount::current().live(), live);
  });
}

}  // namespace
}  // namespace shard::testing
