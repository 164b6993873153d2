// SPDX-License-Identifier: Apache-2.0
// What attention over a cut sequence holds on a rank, by the rank's own memory account.
#include <gtest/gtest.h>
#include <shard/attention.h>
#include <shard/memory.h>
#include <shard/shard.h>
#include <torch/torch.h>

#include <atomic>

namespace shard::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;

struct Held {
  int64_t peak = 0;     ///< bytes beyond the inputs, on the rank that holds most
  int64_t largest = 0;  ///< allocation
};

template <class Run>
Held held_by(World& world, const Run& run) {
  auto& account = MemoryAccount::current();
  account.reset_peak();
  const int64_t before = account.live();
  run();
  Tensor most = torch::tensor({account.peak() - before, account.largest()});
  world.comm().all_reduce(most, ReduceOp::Max);
  return {most[0].item<int64_t>(), most[1].item<int64_t>()};
}

constexpr int64_t kWidth = 32;

Held held_by_ring(int ranks, int64_t rows) {
  Held held;
  run_ranks(ranks, [&](World& world) {
    std::vector<Tensor> qkv;
    for (int i = 0; i < 3; ++i) {
      qkv.push_back(shard::zeros({1, 1, rows, kWidth}, world.mesh(), {Shard(2)}));
      qkv.back().set_requires_grad(true);
    }
    const Held mine = held_by(world, [&] {
      const Tensor y =
          at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0, /*is_causal=*/true);
      torch::autograd::grad({y}, qkv, {torch::ones_like(y)});
    });
    if (world.is_root()) held = mine;
  });
  return held;
}

// LibTorch's flash kernels take some megabytes for themselves, whatever the rows.
TEST(AttentionMemory, OfTheRingFallsWithTheRanksAndGrowsWithTheTokens) {
  const Held eight = held_by_ring(8, 8192);
  const Held four = held_by_ring(4, 8192);
  const Held of_fewer = held_by_ring(4, 4096);
  const Held of_more = held_by_ring(4, 16384);
  EXPECT_LT(eight.peak, 1.15 * static_cast<double>(of_fewer.peak));  // as many tokens a rank
  EXPECT_LT(of_more.peak - four.peak, 2.2 * static_cast<double>(four.peak - of_fewer.peak));
  EXPECT_LT(four.peak - of_fewer.peak, 32 * 1024 * kWidth * int64_t{sizeof(float)});
  // No local tensor has all rows, far less a rank's share of the scores.
  EXPECT_LT(of_more.largest, 16384 * kWidth * int64_t{sizeof(float)});
}

// torch::nn::MultiheadAttention forms its scores by bmm: of the local queries, never of all.
TEST(AttentionMemory, OfTheModuleIsThatOfTheLocalQueries) {
  run_ranks(4, [](World& world) {
    manual_seed(5);
    const int64_t rows = 512;
    nn::MultiheadAttention attention(nn::MultiheadAttentionOptions(16, 2));
    const Tensor x = scatter_tensor(torch::randn({rows, 1, 16}), 0, world.mesh(), {Shard(0)})
                         .set_requires_grad(true);
    const Held held = held_by(world, [&] {
      const auto [y, weights] = attention->forward(x, x, x, {}, /*need_weights=*/false);
      y.sum().backward();
    });
    const int64_t scores = 2 * rows * rows * int64_t{sizeof(float)};  // of two heads
    EXPECT_LE(held.largest, scores / 4);
  });
}

}  // namespace
}  // namespace shard::testing
