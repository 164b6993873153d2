// SPDX-License-Identifier: Apache-2.0
// NOTE [Remembered inputs] (see patch.h), the two ends of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <shard/spec.h>

namespace shard {

/// Leaves `spec` on the autograd node that made `output` (nothing when there is none).
void remember_input(const at::Tensor& output, const SpecRef& spec);

}  // namespace shard
