// SPDX-License-Identifier: Apache-2.0
// The model: a U-Net of four levels in plain torch::nn. It knows nothing of shards; it is the same
// class, line by line, that one process would train.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace global_field {

/// A 3x3 convolution on the globe: longitude wraps around, zeros lie beyond the poles.
class GlobeConvImpl : public torch::nn::Module {
 public:
  GlobeConvImpl(int64_t in_channels, int64_t out_channels);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::Conv2d conv_;
};
TORCH_MODULE(GlobeConv);

/// Twice convolution, group normalisation, SiLU.
class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(int64_t in_channels, int64_t out_channels);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  GlobeConv conv1_, conv2_;
  torch::nn::GroupNorm norm1_, norm2_;
};
TORCH_MODULE(Block);

/// (batch, in, height, width) -> (batch, 1, height, width): channel `base_channel` of the input
/// plus a learned correction, which is zero before training. Any height and width from 8 up.
class UNetImpl : public torch::nn::Module {
 public:
  UNetImpl(int64_t in_channels, int64_t width, int64_t base_channel);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  int64_t base_channel_;
  Block down1_, down2_, down3_, bottom_, up3_, up2_, up1_;
  torch::nn::Conv2d head_;
};
TORCH_MODULE(UNet);

}  // namespace global_field
