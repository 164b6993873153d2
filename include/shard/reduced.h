// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace shard {

/// The tensor without pending reductions, lying as its gradient does; a plain one as it is.
/// Differentiable; collective where a reduction is pending.
at::Tensor reduced(const at::Tensor& t);

}  // namespace shard
