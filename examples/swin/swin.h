// SPDX-License-Identifier: Apache-2.0
// Swin transformer blocks in plain torch::nn: attention within windows, and within windows shifted
// by half, by roll and views. Liu et al., Swin Transformer (2021).
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

namespace swin {

/// (B, H, W, C) -> (B * windows, size * size, C), and back.
inline torch::Tensor to_windows(const torch::Tensor& x, int64_t size) {
  return x.view({x.size(0), x.size(1) / size, size, x.size(2) / size, size, x.size(3)})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({-1, size * size, x.size(3)});
}
inline torch::Tensor from_windows(const torch::Tensor& windows, int64_t size,
                                  const torch::Tensor& like) {
  const int64_t h = like.size(1);
  const int64_t w = like.size(2);
  return windows.view({like.size(0), h / size, w / size, size, size, like.size(3)})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({like.size(0), h, w, like.size(3)});
}

/// The regions that a roll by `shift` brings together without being neighbours: (windows, tokens,
/// tokens), minus infinity between different ones.
inline torch::Tensor shift_mask(int64_t h, int64_t w, int64_t size, int64_t shift,
                                const torch::TensorOptions& options) {
  const auto region = [&](int64_t n) {
    const torch::Tensor row = torch::arange(n, options.dtype(torch::kLong));
    return row.ge(n - size).to(torch::kLong) + row.ge(n - shift).to(torch::kLong);
  };
  const torch::Tensor regions = region(h).unsqueeze(1) * 3 + region(w).unsqueeze(0);
  const torch::Tensor windows = to_windows(regions.view({1, h, w, 1}), size).squeeze(2);
  const torch::Tensor differ = windows.unsqueeze(1).ne(windows.unsqueeze(2));
  return torch::zeros(differ.sizes(), options).masked_fill(differ, -1e4);
}

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(int64_t channels, int64_t heads, int64_t window, int64_t shift)
      : heads_(heads),
        window_(window),
        shift_(shift),
        norm1_(torch::nn::LayerNormOptions({channels})),
        norm2_(torch::nn::LayerNormOptions({channels})),
        qkv_(channels, 3 * channels),
        out_(channels, channels),
        mlp_(torch::nn::Linear(channels, 4 * channels), torch::nn::GELU(),
             torch::nn::Linear(4 * channels, channels)) {
    register_module("norm1", norm1_);
    register_module("qkv", qkv_);
    register_module("out", out_);
    register_module("norm2", norm2_);
    register_module("mlp", mlp_);
    const int64_t reach = 2 * window - 1;
    bias_ = register_parameter("bias", 0.02 * torch::randn({reach * reach, heads}));
  }

  /// (B, H, W, C); H and W multiples of the window.
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = norm1_(x);
    if (shift_ > 0) y = y.roll({-shift_, -shift_}, {1, 2});
    y = from_windows(attention(to_windows(y, window_), x), window_, x);
    if (shift_ > 0) y = y.roll({shift_, shift_}, {1, 2});
    const torch::Tensor z = x + y;
    return z + mlp_->forward(norm2_(z));
  }

 private:
  /// Relative positions of the tokens of a window: (heads, tokens, tokens).
  torch::Tensor position_bias() const {
    const torch::Tensor place = torch::arange(window_, bias_.options().dtype(torch::kLong));
    const torch::Tensor row = place.repeat_interleave(window_);
    const torch::Tensor column = place.repeat({window_});
    const auto apart = [&](const torch::Tensor& t) {
      return t.unsqueeze(1) - t.unsqueeze(0) + window_ - 1;
    };
    const torch::Tensor number = apart(row) * (2 * window_ - 1) + apart(column);
    return bias_.index({number}).permute({2, 0, 1});
  }

  torch::Tensor attention(const torch::Tensor& windows, const torch::Tensor& x) {
    const auto parts = qkv_(windows).chunk(3, -1);
    const auto split = [&](const torch::Tensor& t) {
      return t.unflatten(-1, std::vector<int64_t>{heads_, -1}).transpose(1, 2);
    };
    const torch::Tensor q = split(parts[0]);
    torch::Tensor scores = q.matmul(split(parts[1]).transpose(2, 3));
    scores = scores / std::sqrt(static_cast<double>(q.size(3))) + position_bias();
    if (shift_ > 0) {
      const torch::Tensor mask =
          shift_mask(x.size(1), x.size(2), window_, shift_, bias_.options()).unsqueeze(1);
      scores = scores + mask.repeat({x.size(0), 1, 1, 1});
    }
    const torch::Tensor y = torch::softmax(scores, -1).matmul(split(parts[2]));
    return out_(y.transpose(1, 2).flatten(2));
  }

  int64_t heads_, window_, shift_;
  torch::nn::LayerNorm norm1_, norm2_;
  torch::nn::Linear qkv_, out_;
  torch::nn::Sequential mlp_;
  torch::Tensor bias_;
};
TORCH_MODULE(Block);

/// (B, in, H, W) -> (B, out, H, W): pairs of a plain and a shifted block on every point.
class SwinImpl : public torch::nn::Module {
 public:
  SwinImpl(int64_t in, int64_t out, int64_t channels, int64_t heads, int64_t window, int64_t pairs)
      : embed_(in, channels), head_(channels, out) {
    register_module("embed", embed_);
    for (int64_t i = 0; i < 2 * pairs; ++i) {
      blocks_.push_back(register_module("block" + std::to_string(i),
                                        Block(channels, heads, window, i % 2 * (window / 2))));
    }
    register_module("head", head_);
  }

  torch::Tensor forward(const torch::Tensor& images) {
    torch::Tensor x = embed_(images.permute({0, 2, 3, 1}));
    for (auto& block : blocks_) x = block(x);
    return head_(x).permute({0, 3, 1, 2});
  }

 private:
  torch::nn::Linear embed_, head_;
  std::vector<Block> blocks_;
};
TORCH_MODULE(Swin);

}  // namespace swin
