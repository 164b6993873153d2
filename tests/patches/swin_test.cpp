// SPDX-License-Identifier: Apache-2.0
// Shifted-window attention (Liu et al.: Swin Transformer) as models write it: roll, views as
// windows, attention in every window, and back. Cut along the rows, also where no cut lies between
// two windows.
#include <gtest/gtest.h>
#include <shard/primitives.h>
#include <shard/shard.h>
#include <shard/testing.h>
#include <torch/torch.h>

#include <memory>

namespace shard::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;

constexpr int64_t kWindow = 4;
constexpr int64_t kFeatures = 8;
constexpr int64_t kHeads = 2;

/// (batch, rows, columns, features) -> (batch * windows, points of a window, features).
Tensor as_windows(const Tensor& x) {
  return x.view({x.size(0), x.size(1) / kWindow, kWindow, x.size(2) / kWindow, kWindow, x.size(3)})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({-1, kWindow * kWindow, x.size(3)});
}

Tensor from_windows(const Tensor& windows, at::IntArrayRef sizes) {
  return windows
      .view({sizes[0], sizes[1] / kWindow, sizes[2] / kWindow, kWindow, kWindow, sizes[3]})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape(sizes);
}

/// What rolled windows must not see: points that were not neighbours. A plain mask of all windows.
Tensor shifted_mask(int64_t rows, int64_t columns, int64_t shift) {
  Tensor regions = torch::zeros({1, rows, columns, 1}, at::kDouble);
  int64_t count = 0;
  const auto cuts = [&](int64_t n) {
    return std::vector<std::pair<int64_t, int64_t>>{
        {0, n - kWindow}, {n - kWindow, n - shift}, {n - shift, n}};
  };
  for (const auto& [top, bottom] : cuts(rows)) {
    for (const auto& [left, right] : cuts(columns)) {
      regions.slice(1, top, bottom).slice(2, left, right).fill_(static_cast<double>(count++));
    }
  }
  const Tensor of_window = as_windows(regions).squeeze(-1);
  const Tensor differ = of_window.unsqueeze(1) != of_window.unsqueeze(2);
  return torch::zeros_like(differ, at::kDouble).masked_fill(differ, -100);
}

struct SwinBlock : nn::Module {
  SwinBlock(int64_t rows, int64_t columns, int64_t shift) : shift(shift) {
    norm_1 = register_module("norm_1", nn::LayerNorm(nn::LayerNormOptions({kFeatures})));
    norm_2 = register_module("norm_2", nn::LayerNorm(nn::LayerNormOptions({kFeatures})));
    qkv = register_module("qkv", nn::Linear(kFeatures, 3 * kFeatures));
    out = register_module("out", nn::Linear(kFeatures, kFeatures));
    wide = register_module("wide", nn::Linear(kFeatures, 2 * kFeatures));
    narrow = register_module("narrow", nn::Linear(2 * kFeatures, kFeatures));
    bias =
        register_parameter("bias", torch::randn({1, kHeads, kWindow * kWindow, kWindow * kWindow}));
    if (shift > 0) mask = shifted_mask(rows, columns, shift);
  }

  Tensor attend(const Tensor& windows) {
    const int64_t count = windows.size(0);
    const int64_t points = windows.size(1);
    const auto parts = qkv->forward(windows)
                           .reshape({count, points, 3, kHeads, kFeatures / kHeads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    Tensor scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) / 2 + bias;
    if (mask.defined()) {
      const int64_t windows_of_one = mask.size(0);
      scores = scores.view({count / windows_of_one, windows_of_one, kHeads, points, points}) +
               mask.unsqueeze(1).unsqueeze(0);
      scores = scores.view({-1, kHeads, points, points});
    }
    const Tensor y = torch::matmul(scores.softmax(-1), parts[2]);
    return out->forward(y.transpose(1, 2).reshape({count, points, kFeatures}));
  }

  Tensor forward(const Tensor& x) {
    Tensor moved = norm_1->forward(x);
    if (shift > 0) moved = moved.roll({-shift, -shift}, {1, 2});
    Tensor back = from_windows(attend(as_windows(moved)), x.sizes());
    if (shift > 0) back = back.roll({shift, shift}, {1, 2});
    const Tensor y = x + back;
    return y + narrow->forward(torch::gelu(wide->forward(norm_2->forward(y))));
  }

  int64_t shift;
  nn::LayerNorm norm_1{nullptr}, norm_2{nullptr};
  nn::Linear qkv{nullptr}, out{nullptr}, wide{nullptr}, narrow{nullptr};
  Tensor bias, mask;
};

struct SwinStack : nn::Module {
  SwinStack(int64_t rows, int64_t columns) {
    plain = register_module("plain", std::make_shared<SwinBlock>(rows, columns, 0));
    shifted = register_module("shifted", std::make_shared<SwinBlock>(rows, columns, kWindow / 2));
  }
  Tensor forward(const Tensor& x) { return shifted->forward(plain->forward(x)); }
  std::shared_ptr<SwinBlock> plain, shifted;
};

TEST(Swin, BlocksEqualPlainLibTorchForAnyShards) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& [name, partition] : splits(12, ranks)) {
      SCOPED_TRACE(c10::str(ranks, " ranks, ", name));
      run_ranks(ranks, [&, partition = partition](World& world) {
        manual_seed(5);
        auto stack = std::make_shared<SwinStack>(12, 8);
        stack->to(at::kDouble);
        const Tensor whole = torch::randn({2, 12, 8, kFeatures}, at::kDouble);
        const Tensor x = scatter_tensor(whole, 0, world.mesh(), {Shard(1)}, partition);
        x.set_requires_grad(true);
        const auto report = numerical_shard_tensor_check(world.mesh(), stack, {x});
        EXPECT_TRUE(report.ok()) << report.text();
      });
    }
  }
}

TEST(Swin, RollSendsTheRowsThatCrossABoundaryToTheNeighbour) {
  run_ranks(4, [](World& world) {
    const Tensor x = scatter_tensor(torch::randn({1, 32, 8, 3}), 0, world.mesh(), {Shard(1)});
    const CommCounter counter;
    const Tensor y = x.roll({-2, -2}, {1, 2});
    EXPECT_EQ(counter.calls(), 1);
    EXPECT_EQ(counter.bytes(), 2 * 8 * 3 * int64_t{sizeof(float)});
    EXPECT_EQ(spec_of(y)->partition(), spec_of(x)->partition());
  });
}

TEST(Swin, WindowsBetweenCutsMoveNothing) {
  run_ranks(4, [](World& world) {
    const Tensor x = scatter_tensor(torch::randn({1, 32, 8, 3}), 0, world.mesh(), {Shard(1)});
    const CommCounter counter;
    from_windows(as_windows(x), x.sizes());
    EXPECT_EQ(counter.calls(), 0);
  });
}

}  // namespace
}  // namespace shard::testing
