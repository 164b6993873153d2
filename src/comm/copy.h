// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace shard {

/// to := from, both plain CPU tensors of equal sizes and dtypes with any strides.
void copy_plain(const at::Tensor& to, const at::Tensor& from);

/// Memory of `tensor` in row-major order: the tensor itself when it lies so, else a copy.
at::Tensor packed(const at::Tensor& tensor);

}  // namespace shard
