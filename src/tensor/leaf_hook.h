// SPDX-License-Identifier: Apache-2.0
// The gradient of a ShardTensor leaf has the leaf's placement, whatever placement the last op's
// formula produced.
#pragma once

#include <ATen/core/Tensor.h>

namespace shard {

/// Adds the hook to a leaf that requires grad, at its first use; nothing for other tensors. Cheap.
void ensure_leaf_hook(const at::Tensor& tensor);

}  // namespace shard
