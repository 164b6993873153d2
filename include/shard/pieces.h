// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/spec.h>

#include <vector>

namespace shard {

/// Views of `tensor` along `dim`, one of partition[r] rows for every rank r.
std::vector<at::Tensor> pieces_of(const at::Tensor& tensor, int64_t dim,
                                  const Partition& partition);

}  // namespace shard
