// SPDX-License-Identifier: Apache-2.0
// The modes of <shard/modes.h>: lines that explain, ops that gather, plain tensors that are
// compared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/handlers.h>
#include <shard/shard.h>
#include <torch/types.h>

#include "support/rank_errors.h"
#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Tensor rows(World& world) {
  return scatter_tensor(torch::ones({6, 4}), 0, world.mesh(), {Shard(0)}, {4, 2});
}

// ---- SHARD_EXPLAIN

std::string explained(const std::function<void(World&)>& body) {
  ::testing::internal::CaptureStderr();
  set_explain(true);
  run_ranks(2, body);
  set_explain(false);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Explain, NamesWhatRanAndHowTheTensorsLay) {
  const auto text = explained([](World& world) {
    const auto image =
        scatter_tensor(torch::ones({1, 1, 8, 8}), 0, world.mesh(), {Shard(2)}, {5, 3});
    at::conv2d(image, torch::ones({1, 1, 3, 3}), {}, 1, 1);
  });
  EXPECT_THAT(text, HasSubstr("[shard rank 0] [explain] "));
  EXPECT_THAT(text, HasSubstr("aten::convolution by patch: (Shard(2)) [1, 1, 8, 8], plain "
                              "[1, 1, 3, 3] -> (Shard(2)) [1, 1, 8, 8]; 1 communication, "));
  EXPECT_THAT(text, Not(HasSubstr("rank 1")));
}

TEST(Explain, SaysWhatARuleMoved) {
  const auto text = explained([](World& world) {
    const auto x = rows(world);
    const auto y = redistribute(x, spec_of(x)->with(Shard(0), x.sizes(), {1, 5}));
    EXPECT_EQ(ShardTensor(x + y).full().sum().item<double>(), 48);
  });
  EXPECT_THAT(text, HasSubstr("aten::add.Tensor by rule"));
  EXPECT_THAT(text, HasSubstr("moved from Shard(0) to Shard(0) as the rule asks, other pieces"));
}

TEST(Explain, NamesHandlersAndErrors) {
  const auto text = explained([](World& world) {
    const auto handler =
        register_function_handler<at::_ops::relu>(+[](const Tensor& x) { return x; });
    rows(world).relu();
    EXPECT_THROW(at::poisson(rows(world)), MissingShardPatch);
  });
  EXPECT_THAT(text, HasSubstr("aten::relu by handler: (Shard(0)) [6, 4] -> (Shard(0)) [6, 4]\n"));
  EXPECT_THAT(text, HasSubstr("aten::poisson by no rule: (Shard(0)) [6, 4] -> an error\n"));
}

TEST(Explain, IsSilentUnlessAsked) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [](World& world) { rows(world).relu(); });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// ---- SHARD_FALLBACK

/// Of an op whose rule has no answer (a matrix that is cut), of a patch that refuses (averages of
/// integers).
TEST(GatherFallback, RunsWhatNothingCoversWithRightGradients) {
  const FallbackScope gather(FallbackMode::Gather);
  torch::manual_seed(3);
  expect_sharded_equals_plain([](const Tensors& t) { return at::linalg_svdvals(t[0]); },
                              {sharded(torch::randn({7, 4}, at::kDouble), 0)}, {});
  Check forward_only;
  forward_only.gradients = false;
  expect_sharded_equals_plain(
      [](const Tensors& t) { return at::avg_pool2d(t[0], 3, 2, 1, false, false); },
      {sharded(torch::randint(0, 99, {1, 2, 9, 6}), 2)}, forward_only);
}

TEST(GatherFallback, CutsTheResultAgainAndWarnsOnce) {
  ::testing::internal::CaptureStderr();
  const FallbackScope gather(FallbackMode::Gather);
  run_ranks(2, [](World& world) {
    for (int i = 0; i < 3; ++i) {
      const auto [q, r] = at::linalg_qr(rows(world));
      EXPECT_EQ(ShardTensor(q).partition(0), (Partition{4, 2}));
      EXPECT_NEAR(at::matmul(q, r).sum().item<double>(), 6 * 4, 1e-5);
      EXPECT_EQ(at::trace(rows(world)).item<double>(), 4);
    }
  });
  const auto text = ::testing::internal::GetCapturedStderr();
  const std::string warning = "[aten::linalg_qr] no patch or rule covers this call";
  EXPECT_THAT(text, HasSubstr("[shard rank 0] warning: " + warning));
  EXPECT_EQ(text.find(warning), text.rfind(warning)) << text;
}

TEST(GatherFallback, IsRefusedToOpsThatWrite) {
  const FallbackScope gather(FallbackMode::Gather);
  expect_same_error<MissingShardPatch>(2, "aten::rrelu_with_noise_", [](const DeviceMesh& mesh) {
    auto x = scatter_tensor(torch::ones({6, 4}), 0, mesh, {Shard(0)}, {4, 2});
    return [x]() mutable { at::rrelu_with_noise_(x, x); };
  });
}

TEST(GatherFallback, IsOffUnlessAsked) {
  run_ranks(2, [](World& world) {
    EXPECT_THROW(at::poisson(rows(world)), MissingShardPatch);
    EXPECT_EQ((rows(world) + 1).sum().item<double>(), 48);
  });
}

// ---- SHARD_CHECK_REPLICATED

class CheckReplicated : public ::testing::Test {
 protected:
  CheckReplicated() { set_check_replicated(true); }
  ~CheckReplicated() override { set_check_replicated(false); }
};

std::string error_of(const std::function<void(World&)>& body) {
  try {
    run_ranks(3, body);
  } catch (const SpecMismatch& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST_F(CheckReplicated, NamesTheFirstRankWhoseWeightDiffers) {
  const auto text = error_of([](World& world) {
    const auto x = scatter_tensor(torch::ones({9, 4}), 0, world.mesh(), {Shard(0)});
    const Tensor weight = torch::full({2, 4}, world.rank() < 2 ? 1. : 2.).requires_grad_();
    at::linear(x, weight);
  });
  EXPECT_THAT(text, AllOf(HasSubstr("plain tensor (Float of [2, 4]"),
                          HasSubstr("differs on rank 2"), HasSubstr("broadcast_parameters")));
}

TEST_F(CheckReplicated, SeesConstantsOfRulesToo) {
  const auto text = error_of([](World& world) {
    const auto x = scatter_tensor(torch::ones({9, 4}), 0, world.mesh(), {Shard(0)});
    x + torch::full({4}, world.rank() < 1 ? 1. : 2.);
  });
  EXPECT_THAT(text, HasSubstr("differs on rank 1"));
}

TEST_F(CheckReplicated, PassesWhatIsEqual) {
  const auto text = error_of([](World& world) {
    const auto x = scatter_tensor(torch::ones({9, 4}), 0, world.mesh(), {Shard(0)});
    const Tensor weight = torch::ones({2, 4}).requires_grad_();
    (at::linear(x, weight).relu() * torch::ones({2})).sum().backward();
    EXPECT_TRUE(at::equal(weight.grad(), torch::full({2, 4}, 9.)));
  });
  EXPECT_EQ(text, "no error");
}

}  // namespace
}  // namespace shard::testing
