// SPDX-License-Identifier: Apache-2.0
// In-place ops, on tensors and through views: values and gradients as on one device.
#include <gtest/gtest.h>
#include <shard/shard.h>
#include <torch/torch.h>

#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;
using torch::indexing::Ellipsis;
using torch::indexing::Slice;

/// Checks `function` of one (6, 4) tensor cut along dim 0.
void check_rows(const std::function<Tensor(Tensor)>& function) {
  torch::manual_seed(1);
  Check check;
  check.no_grad_and_inference = false;
  check.grid = Check::Grid::OneDim;  // a view of a dim that another mesh dim cuts is a copy
  expect_sharded_equals_plain([&](const std::vector<Tensor>& in) { return function(in[0]); },
                              {sharded(torch::randn({6, 4}), 0)}, check);
}

TEST(InPlace, ArithmeticOnADerivedTensor) {
  check_rows([](Tensor x) {
    auto y = x * 2;
    y.add_(1).mul_(x);
    return y;
  });
}

TEST(InPlace, Relu) {
  check_rows([](Tensor x) {
    auto y = x * 2;
    torch::relu_(y);
    return y * y;
  });
}

TEST(InPlace, MultiplyingAViewReachesTheBaseAndItsGradient) {
  check_rows([](Tensor x) {
    auto y = x * 1;
    y.select(1, 0).mul_(3);
    return y * y;
  });
}

TEST(InPlace, ThroughAChainOfViews) {
  check_rows([](Tensor x) {
    auto y = x * 1;
    y.view({6, 2, 2}).transpose(1, 2).select(2, 1).narrow(1, 0, 1).mul_(3);
    return y * y;
  });
}

TEST(InPlace, OnASliceOfTheShardedDim) {
  check_rows([](Tensor x) {
    auto y = x * 1;
    y.narrow(0, 1, 4).mul_(3);
    return y * y;
  });
}

TEST(InPlace, OnSlicesOfSlicesOfTheShardedDim) {
  check_rows([](Tensor x) {
    auto y = x * 1;
    auto c = y.narrow(0, 1, 5).narrow(0, 1, 3);
    c.mul_(2);
    y.select(1, 0).add_(1);
    c.select(1, 3).mul_(5);
    return y * y * y;
  });
}

TEST(InPlace, WithAStepAlongTheShardedDim) {
  check_rows([](Tensor x) {
    auto y = x * 1;
    y.slice(0, 1, 6, 2).mul_(3);
    return y * y;
  });
}

TEST(InPlace, OnTheBaseIsSeenByAnEarlierView) {
  check_rows([](Tensor x) {
    auto y = x * 1;
    auto v = y.select(1, 0);
    y.mul_(3);
    return v * v;
  });
}

TEST(InPlace, AssigningAColumn) {
  check_rows([](Tensor x) {
    auto y = x * 1;
    y.index_put_({Slice(), 1}, y.index({Slice(), 2}) * 4);
    return y * y;
  });
}

TEST(InPlace, AssigningEverythingFromAProductWithAPlainWeight) {
  check_rows([](Tensor x) {
    auto y = x * 1;
    y.index_put_({Ellipsis}, torch::linspace(1, 2, 4) * x);
    return y * y;
  });
}

TEST(InPlace, ChangingDimsKeepsSizesSpecAndLocalInStep) {
  check_rows([](Tensor x) {
    auto y = x * 1;
    y.unsqueeze_(0);
    y.squeeze_(0);
    y.t_();
    EXPECT_EQ(y.sizes(), (std::vector<int64_t>{4, 6}));
    return y * y;
  });
}

TEST(InPlace, OnAPartOfASplit) {
  check_rows([](Tensor x) {
    auto y = x * 1;
    y.slice(1, 0, 2).mul_(2);
    return y * y;
  });
}

TEST(InPlace, PlainTensorsTakeShardedOnesIn) {
  check_rows([](Tensor x) {
    auto p = torch::ones({6, 4});
    p.add_(x);
    p.mul_(x);
    EXPECT_FALSE(is_shard_tensor(p));
    return p * 1;
  });
}

TEST(InPlace, CopyIntoAColumnOfAPlainTensor) {
  check_rows([](Tensor x) {
    auto p = torch::zeros({6, 4});
    p.select(1, 0).copy_(x.select(1, 1));
    return p * p;
  });
}

TEST(InPlace, UpdatingALeafWithoutGradMode) {
  check_rows([](Tensor x) {
    auto y = x * 2;
    const torch::NoGradGuard guard;
    return y.detach().clone().add_(1);
  });
}

/// What plain LibTorch refuses ("modified by an inplace operation") is refused here, not silently
/// wrong.
void expect_version_error(const std::function<Tensor(Tensor)>& loss) {
  run_ranks(2, [&](World& world) {
    auto x = scatter_tensor(torch::randn({6, 4}), 0, world.mesh(), {Shard(0)}).requires_grad_();
    const auto y = loss(x);
    try {
      y.backward();
      ADD_FAILURE() << "expected an error about a modified saved tensor";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("inplace"), std::string::npos) << error.what();
    }
  });
}

TEST(Versions, OverwritingASavedResultIsAnError) {
  expect_version_error([](Tensor x) {
    auto y = (x * 1).exp();
    auto z = y.sum();
    const torch::NoGradGuard guard;
    y.mul_(2);
    return z;
  });
}

TEST(Versions, OverwritingThroughADetachedAliasIsAnError) {
  expect_version_error([](Tensor x) {
    auto y = (x * 1).exp();
    auto d = y.detach();
    {
      const torch::NoGradGuard guard;
      d.mul_(2);
    }
    return y.sum();
  });
}

TEST(Versions, OverwritingAnInputThatAPatchSavedLocallyIsAnError) {
  expect_version_error([](Tensor x) {
    auto h = x * 1;
    auto w = torch::ones({3, 4}).requires_grad_();
    auto y = torch::nn::functional::linear(h, w);  // saves the local tensor of h
    {
      const torch::NoGradGuard guard;
      h.mul_(2);
    }
    return y.sum();
  });
}

TEST(InPlace, ReturnsSelf) {
  run_ranks(2, [](World& world) {
    auto x = scatter_tensor(torch::randn({6, 4}), 0, world.mesh(), {Shard(0)});
    EXPECT_TRUE(x.add_(1).is_same(x));
    EXPECT_TRUE(x.clamp_(0, 1).is_same(x));
  });
}

/// (1, 4) cut along dim 0 in pieces {1, 0}: squeezing needs communication, so the result is a copy.
TEST(MarkedCopies, MayBeReadButNotWrittenNorOutliveAChangeOfTheirBase) {
  run_ranks(2, [](World& world) {
    const auto whole = torch::arange(4, torch::kFloat).view({1, 4});
    auto base = scatter_tensor(whole, 0, world.mesh(), {Shard(0)}) * 1;
    auto row = base.squeeze(0);
    EXPECT_LE(relative_error(ShardTensor(row * 2).full(), whole[0] * 2), 0);
    EXPECT_THROW(row.mul_(2), SpecMismatch);
    auto part = row.slice(0, 0, 2);
    base.add_(1);
    EXPECT_THROW(row * 2, SpecMismatch);
    EXPECT_THROW(part * 2, SpecMismatch);
    EXPECT_NO_THROW(base.squeeze(0) * 2);
  });
}

TEST(MarkedCopies, CarryGradients) {
  torch::manual_seed(1);
  Check check;
  check.no_grad_and_inference = false;
  expect_sharded_equals_plain(
      [](const std::vector<Tensor>& in) {
        return in[0].squeeze(0) * in[0].expand({3, 4});
      },
      {sharded(torch::randn({1, 4}), 0)}, check);
}

TEST(OutVariants, WriteIntoATensorOfTheResultsSize) {
  run_ranks(3, [](World& world) {
    const torch::NoGradGuard guard;
    const auto whole = torch::arange(24, torch::kFloat).view({6, 4});
    auto x = scatter_tensor(whole, 0, world.mesh(), {Shard(0)}, {4, 0, 2});
    auto out = torch::empty_like(x);
    at::add_out(out, x, x);
    EXPECT_LE(relative_error(ShardTensor(out).full(), whole * 2), 1e-6);
  });
}

TEST(InPlace, ListsOfPlainAndShardedTensorsAreWrittenKindByKind) {
  run_ranks(3, [](World& world) {
    const auto whole = torch::arange(28.0).view({7, 4});
    const auto cut = scatter_tensor(whole, 0, world.mesh(), {Shard(0)}, {3, 0, 4});
    std::vector<at::Tensor> expected{whole.clone(), whole.clone(), whole.clone()};
    std::vector<at::Tensor> mixed{whole.clone(), cut.clone(), whole.clone()};
    for (auto* tensors : {&expected, &mixed}) {
      at::_foreach_add_(*tensors, 1);
      at::_foreach_mul_(*tensors, {1, 2, 3});  // a number each
      at::_foreach_addcmul_(*tensors, *tensors, *tensors, 0.5);
      at::_foreach_div_(*tensors, cut.sum());
    }
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(is_shard_tensor(mixed[i]), i == 1);
      const auto got = i == 1 ? ShardTensor(mixed[i]).full() : mixed[i];
      EXPECT_TRUE(at::allclose(got, expected[i])) << i;
    }
  });
}

}  // namespace
}  // namespace shard::testing
