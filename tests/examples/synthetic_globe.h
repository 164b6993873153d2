// SPDX-License-Identifier: Apache-2.0
// Files of the shape of the real data with invented content, so that tests need no download.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace global_field::testing {

/// (2160, 4320, 12) and (2160, 4320) uint8 as stored.
at::Tensor synthetic_turbidity();
at::Tensor synthetic_altitude();

/// LinkeTurbidities.h5 and Altitude.h5 in `folder`.
void write_synthetic_globe(const std::string& folder);

}  // namespace global_field::testing
