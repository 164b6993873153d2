// SPDX-License-Identifier: Apache-2.0
// An op that fails half way, after its messages were sent: on every rank, and the next op is right;
// on one rank, and the others hear of it instead of waiting.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/handlers.h>
#include <shard/shard.h>
#include <shard/window_patch.h>
#include <torch/types.h>

#include <mutex>

#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;
using ::testing::Each;

constexpr Window kThreeRows{.kernel = 3, .padding = 1};

/// Fetches the neighbours' rows, then fails.
Tensor fail_after_messages(const Tensor& x) {
  window_rows(sharded_input(x), kThreeRows, 0);
  throw std::runtime_error("the kernel failed");
}
Tensor fail_on_rank_1(const Tensor& x) {
  if (mesh_of(x).rank() == 1) return fail_after_messages(x);
  window_rows(sharded_input(x), kThreeRows, 0);
  window_rows(sharded_input(x), kThreeRows, 0);  // for which rank 1 does not come
  return x;
}

Tensor image() { return torch::arange(1. * 2 * 9 * 4, torch::kDouble).view({1, 2, 9, 4}).sin(); }
Tensor rows(World& world) { return scatter_tensor(image(), 0, world.mesh(), {Shard(2)}); }

void expect_right_convolution(World& world) {
  const Tensor w = torch::ones({3, 2, 3, 3}, torch::kDouble);
  EXPECT_LE(relative_error(ShardTensor(torch::conv2d(rows(world), w, {}, 1, 1)).full(),
                           torch::conv2d(image(), w, {}, 1, 1)),
            1e-14);
}

TEST(ErrorsInOps, OnEveryRankLeaveNoMessageBehind) {
  run_ranks(3, [](World& world) {
    const auto handler = register_function_handler<at::_ops::relu>(fail_after_messages);
    for (int i = 0; i < 3; ++i) {
      EXPECT_THROW(rows(world).relu(), std::runtime_error);
      expect_right_convolution(world);
    }
  });
}

TEST(ErrorsInOps, OfLibTorchsKernelsLeaveNoMessageBehind) {
  run_ranks(3, [](World& world) {
    const auto x = rows(world);
    const auto options = x.options();
    EXPECT_THROW(torch::conv2d(x, torch::ones({3, 5, 3, 3}, options), {}, 1, 1), c10::Error);
    EXPECT_THROW(torch::conv2d(x, torch::ones({3, 2, 3, 3}, at::kFloat), {}, 1, 1), c10::Error);
    EXPECT_THROW(torch::group_norm(x, 5), c10::Error);
    EXPECT_THROW(x.index_select(2, torch::tensor({9}, at::kLong)), c10::Error);
    expect_right_convolution(world);
  });
}

/// What the ranks raise when `body` fails on rank 1. A rank that waits too long raises CommTimeout,
/// which says so.
std::vector<std::string> raised(const RankFunction& body) {
  std::mutex mutex;
  std::vector<std::string> texts;
  LaunchOptions options;
  options.timeout = std::chrono::seconds(10);
  const auto noted = [&](World& world) {
    try {
      body(world);
    } catch (const PeerFailed& error) {
      const std::lock_guard lock(mutex);
      texts.emplace_back(error.what_without_backtrace());
      throw;
    }
  };
  try {
    run_ranks(3, noted, options);
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the kernel failed");
  }
  return texts;
}

TEST(ErrorsInOps, OfOneRankReachTheOthersWithItsText) {
  const auto texts = raised([](World& world) {
    const auto handler = register_function_handler<at::_ops::relu>(fail_on_rank_1);
    rows(world).relu();
    world.comm().barrier();
  });
  EXPECT_EQ(texts.size(), 2U);
  EXPECT_THAT(texts, Each(::testing::HasSubstr("rank 1 failed: the kernel failed")));
}

TEST(ErrorsInOps, OfOneRankInTheBackwardReachTheOthersWithItsText) {
  const auto texts = raised([](World& world) {
    const Tensor w = torch::ones({3, 2, 3, 3}, torch::kDouble).requires_grad_();
    const Tensor x = rows(world).requires_grad_();
    const Tensor h = torch::conv2d(x, w, {}, 1, 1);
    if (world.rank() == 1) {
      h.register_hook(
          [](const Tensor&) -> Tensor { throw std::runtime_error("the kernel failed"); });
    }
    h.square().sum().backward();
    world.comm().barrier();
  });
  EXPECT_EQ(texts.size(), 2U);
  EXPECT_THAT(texts, Each(::testing::HasSubstr("rank 1 failed: the kernel failed")));
}

}  // namespace
}  // namespace shard::testing
