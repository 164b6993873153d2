// SPDX-License-Identifier: Apache-2.0
// PNG pictures from tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace shard::io {

/// Writes (height, width, 3) uint8 as an RGB picture, or (height, width) uint8 as a grey one. The
/// file appears complete or not at all. Errors: SpecMismatch (shape, dtype, device), FileError.
void write_png(const std::string& path, const at::Tensor& image);

}  // namespace shard::io
