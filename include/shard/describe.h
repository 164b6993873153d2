// SPDX-License-Identifier: Apache-2.0
// How a tensor lies over its mesh, drawn as text for people.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace shard {

/// Global shape, dtype and mesh, then one line a rank with the rows it holds of every cut dim:
///
///   Float [1, 1, 90, 180] on ('ddp': 1, 'domain': 2), placements (Replicate, Shard(2))
///     rank 0  at (0, 0)  dim 2: rows 0..59 of 90
///     rank 1  at (0, 1)  dim 2: rows 60..89 of 90
///
/// The same text on every rank; no communication. A plain tensor gives one line. The lines of more
/// than 16 ranks are cut short.
std::string describe(const at::Tensor& tensor);

}  // namespace shard
