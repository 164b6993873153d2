// SPDX-License-Identifier: Apache-2.0
#include "unet.h"

#include <torch/nn/functional/padding.h>
#include <torch/nn/functional/pooling.h>
#include <torch/nn/functional/upsampling.h>
#include <torch/nn/init.h>

namespace global_field {
namespace nn = torch::nn;
namespace F = torch::nn::functional;
namespace {

constexpr int64_t kGroups = 4;

torch::Tensor halve(const torch::Tensor& x) { return F::avg_pool2d(x, F::AvgPool2dFuncOptions(2)); }

/// `x` at the size of `skip`, then both side by side. Nearest neighbours: unlike smoother modes
/// they know no border at the date line, so that turning the globe turns the result.
torch::Tensor upsample_and_join(const torch::Tensor& x, const torch::Tensor& skip) {
  const auto options = F::InterpolateFuncOptions()
                           .size(std::vector<int64_t>{skip.size(2), skip.size(3)})
                           .mode(torch::kNearest);
  return torch::cat({F::interpolate(x, options), skip}, 1);
}

}  // namespace

GlobeConvImpl::GlobeConvImpl(int64_t in_channels, int64_t out_channels)
    : conv_(nn::Conv2dOptions(in_channels, out_channels, 3).padding({1, 0}).bias(false)) {
  register_module("conv", conv_);
}

torch::Tensor GlobeConvImpl::forward(const torch::Tensor& x) {
  return conv_(F::pad(x, F::PadFuncOptions({1, 1, 0, 0}).mode(torch::kCircular)));
}

BlockImpl::BlockImpl(int64_t in_channels, int64_t out_channels)
    : conv1_(in_channels, out_channels),
      conv2_(out_channels, out_channels),
      norm1_(kGroups, out_channels),
      norm2_(kGroups, out_channels) {
  register_module("conv1", conv1_);
  register_module("norm1", norm1_);
  register_module("conv2", conv2_);
  register_module("norm2", norm2_);
}

torch::Tensor BlockImpl::forward(const torch::Tensor& x) {
  const torch::Tensor y = torch::silu(norm1_(conv1_(x)));
  return torch::silu(norm2_(conv2_(y)));
}

UNetImpl::UNetImpl(int64_t in_channels, int64_t width, int64_t base_channel)
    : base_channel_(base_channel),
      down1_(in_channels, width),
      down2_(width, 2 * width),
      down3_(2 * width, 4 * width),
      bottom_(4 * width, 8 * width),
      up3_(12 * width, 4 * width),
      up2_(6 * width, 2 * width),
      up1_(3 * width, width),
      head_(nn::Conv2dOptions(width + in_channels, 1, 1)) {
  register_module("down1", down1_);
  register_module("down2", down2_);
  register_module("down3", down3_);
  register_module("bottom", bottom_);
  register_module("up3", up3_);
  register_module("up2", up2_);
  register_module("up1", up1_);
  register_module("head", head_);
  nn::init::zeros_(head_->weight);
  nn::init::zeros_(head_->bias);
}

torch::Tensor UNetImpl::forward(const torch::Tensor& x) {
  const torch::Tensor skip1 = down1_(x);
  const torch::Tensor skip2 = down2_(halve(skip1));
  const torch::Tensor skip3 = down3_(halve(skip2));
  torch::Tensor y = bottom_(halve(skip3));
  y = up3_(upsample_and_join(y, skip3));
  y = up2_(upsample_and_join(y, skip2));
  y = up1_(upsample_and_join(y, skip1));
  return x.narrow(1, base_channel_, 1) + head_(torch::cat({y, x}, 1));
}

}  // namespace global_field
