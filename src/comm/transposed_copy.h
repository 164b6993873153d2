// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace shard {

/// to := from for plain CPU tensors of equal sizes and dtypes whose memory runs along different
/// dims, as when a shard moves from one dim to another. False, and nothing done, for all others.
bool copy_transposed(const at::Tensor& to, const at::Tensor& from);

}  // namespace shard
