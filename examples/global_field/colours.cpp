// SPDX-License-Identifier: Apache-2.0
#include "colours.h"

#include <torch/types.h>

namespace global_field {
namespace {

/// Straight lines between equally spaced colours, (n, 3) in 0..255.
torch::Tensor interpolate(const torch::Tensor& values, const torch::Tensor& colours) {
  const auto last = static_cast<double>(colours.size(0) - 1);
  const torch::Tensor position = values.to(torch::kFloat32).clamp(0, 1).mul(last);
  const torch::Tensor below = position.floor().clamp_max(last - 1);
  const torch::Tensor fraction = (position - below).unsqueeze(-1);
  const torch::Tensor index = below.to(torch::kLong);
  const torch::Tensor from = colours.index({index});
  const torch::Tensor to = colours.index({index + 1});
  return torch::lerp(from, to, fraction).round().to(torch::kByte);
}

}  // namespace

torch::Tensor sequential_colours(const torch::Tensor& values) {
  const torch::Tensor viridis = torch::tensor({{68.F, 1.F, 84.F},
                                               {71.F, 44.F, 122.F},
                                               {59.F, 81.F, 139.F},
                                               {44.F, 113.F, 142.F},
                                               {33.F, 144.F, 141.F},
                                               {39.F, 173.F, 129.F},
                                               {92.F, 200.F, 99.F},
                                               {170.F, 220.F, 50.F},
                                               {253.F, 231.F, 37.F}});
  return interpolate(values, viridis);
}

torch::Tensor diverging_colours(const torch::Tensor& values) {
  const torch::Tensor blue_red = torch::tensor({{5.F, 48.F, 97.F},
                                                {67.F, 147.F, 195.F},
                                                {247.F, 247.F, 247.F},
                                                {214.F, 96.F, 77.F},
                                                {103.F, 0.F, 31.F}});
  return interpolate(values, blue_red);
}

}  // namespace global_field
