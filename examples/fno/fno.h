// SPDX-License-Identifier: Apache-2.0
// A Fourier neural operator in plain torch::nn. Li et al., Fourier Neural Operator for Parametric
// Partial Differential Equations (2021).
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

namespace fno {

/// (B, C, H, W) -> (B, C, H, W): every one of the lowest `modes` frequencies (of both signs along
/// H) gets a matrix of its own.
class SpectralConvImpl : public torch::nn::Module {
 public:
  SpectralConvImpl(int64_t channels, int64_t modes_h, int64_t modes_w)
      : modes_h_(modes_h), modes_w_(modes_w) {
    const double scale = 1.0 / static_cast<double>(channels);
    const auto weight = [&] {  // complex numbers as pairs, for every optimizer to understand
      return scale * torch::randn({channels, channels, modes_h, modes_w, 2});
    };
    low_ = register_parameter("low", weight());
    high_ = register_parameter("high", weight());
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor waves = torch::fft::rfft2(x, std::nullopt, {-2, -1}, "ortho");
    const int64_t rest = waves.size(2) - 2 * modes_h_;
    const torch::Tensor kept = waves.narrow(3, 0, modes_w_);
    const torch::Tensor low = mix(kept.narrow(2, 0, modes_h_), low_);
    const torch::Tensor high = mix(kept.narrow(2, waves.size(2) - modes_h_, modes_h_), high_);
    const torch::Tensor between = torch::zeros_like(kept.narrow(2, modes_h_, rest));
    const torch::Tensor mixed = torch::cat({low, between, high}, 2);
    const torch::Tensor beyond =
        torch::zeros_like(waves.narrow(3, modes_w_, waves.size(3) - modes_w_));
    return torch::fft::irfft2(torch::cat({mixed, beyond}, 3),
                              std::vector<int64_t>{x.size(2), x.size(3)}, {-2, -1}, "ortho");
  }

 private:
  static torch::Tensor mix(const torch::Tensor& waves, const torch::Tensor& weight) {
    return torch::einsum("bixy,ioxy->boxy", {waves, torch::view_as_complex(weight)});
  }

  int64_t modes_h_, modes_w_;
  torch::Tensor low_, high_;
};
TORCH_MODULE(SpectralConv);

/// (B, in, H, W) -> (B, out, H, W)
class FnoImpl : public torch::nn::Module {
 public:
  FnoImpl(int64_t in, int64_t out, int64_t channels, int64_t modes_h, int64_t modes_w,
          int64_t layers)
      : lift_(torch::nn::Conv2dOptions(in, channels, 1)),
        project_(torch::nn::Conv2dOptions(channels, out, 1)) {
    register_module("lift", lift_);
    for (int64_t i = 0; i < layers; ++i) {
      const std::string number = std::to_string(i);
      global_.push_back(
          register_module("global" + number, SpectralConv(channels, modes_h, modes_w)));
      local_.push_back(register_module(
          "local" + number, torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, channels, 1))));
    }
    register_module("project", project_);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor x = lift_(input);
    for (size_t i = 0; i < global_.size(); ++i) x = torch::gelu(global_[i](x) + local_[i](x));
    return project_(x);
  }

 private:
  torch::nn::Conv2d lift_, project_;
  std::vector<SpectralConv> global_;
  std::vector<torch::nn::Conv2d> local_;
};
TORCH_MODULE(Fno);

}  // namespace fno
