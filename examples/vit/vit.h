// SPDX-License-Identifier: Apache-2.0
// A vision transformer in plain torch::nn: patches by a strided convolution, learned positions,
// encoder, head. Dosovitskiy et al., An Image is Worth 16x16 Words (2021).
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

namespace vit {

/// Attention and a multilayer perceptron, each after a normalisation: (B, N, C) -> (B, N, C).
class EncoderLayerImpl : public torch::nn::Module {
 public:
  EncoderLayerImpl(int64_t channels, int64_t heads)
      : heads_(heads),
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
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = x + attention(norm1_(x));
    return y + mlp_->forward(norm2_(y));
  }

 private:
  torch::Tensor attention(const torch::Tensor& x) {
    const auto parts = qkv_(x).chunk(3, -1);
    const auto split = [&](const torch::Tensor& t) {  // (B, heads, N, C / heads)
      return t.unflatten(-1, std::vector<int64_t>{heads_, -1}).transpose(1, 2);
    };
    const torch::Tensor y =
        at::scaled_dot_product_attention(split(parts[0]), split(parts[1]), split(parts[2]));
    return out_(y.transpose(1, 2).flatten(2));
  }

  int64_t heads_;
  torch::nn::LayerNorm norm1_, norm2_;
  torch::nn::Linear qkv_, out_;
  torch::nn::Sequential mlp_;
};
TORCH_MODULE(EncoderLayer);

struct Options {
  int64_t height = 64, width = 64;  ///< of the images
  int64_t patch = 8;
  int64_t in = 3, out = 10;
  int64_t channels = 32, heads = 4, layers = 2;
};

/// Images (B, in, H, W) -> (B, out).
class VitImpl : public torch::nn::Module {
 public:
  explicit VitImpl(const Options& o)
      : patches_(torch::nn::Conv2dOptions(o.in, o.channels, o.patch).stride(o.patch)),
        norm_(torch::nn::LayerNormOptions({o.channels})),
        head_(o.channels, o.out) {
    register_module("patches", patches_);
    const int64_t tokens = (o.height / o.patch) * (o.width / o.patch);
    positions_ = register_parameter("positions", 0.02 * torch::randn({1, tokens, o.channels}));
    for (int64_t i = 0; i < o.layers; ++i) {
      layers_.push_back(
          register_module("layer" + std::to_string(i), EncoderLayer(o.channels, o.heads)));
    }
    register_module("norm", norm_);
    register_module("head", head_);
  }

  torch::Tensor forward(const torch::Tensor& images) {
    torch::Tensor x = patches_(images).flatten(2).transpose(1, 2) + positions_;
    for (auto& layer : layers_) x = layer(x);
    return head_(norm_(x).mean(1));
  }

 private:
  torch::nn::Conv2d patches_;
  torch::Tensor positions_;
  std::vector<EncoderLayer> layers_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
};
TORCH_MODULE(Vit);

}  // namespace vit
