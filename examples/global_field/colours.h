// SPDX-License-Identifier: Apache-2.0
// Colour maps: numbers in [0, 1] to RGB.
#pragma once

#include <torch/types.h>

namespace global_field {

/// Values (any shape; clamped to [0, 1]) -> (shape, 3) uint8. Dark violet over green to yellow
/// (viridis).
torch::Tensor sequential_colours(const torch::Tensor& values);
/// Blue below 0.5, white at 0.5, red above.
torch::Tensor diverging_colours(const torch::Tensor& values);

}  // namespace global_field
