// SPDX-License-Identifier: Apache-2.0
// --verify: one training step on sharded tensors against the same step by plain LibTorch on one
// process (same weights, same sample, read anew from the files), tensor by tensor.
#pragma once

#include "options.h"
#include "sharded_field.h"
#include "unet.h"

namespace global_field {

/// The error of a tensor is max|a - b| / max|b| against plain LibTorch in float64. The step in
/// float64 must keep it to 1e-10. A float32 job must keep its float32 step to 2 E + 2e-6 besides.
/// E is no fixed tolerance but what plain float32 gets wrong in that tensor, the most over up to
/// five orders of summation: see NOTE [Plain float32's own error]. Rank 0 holds the whole field for
/// this, once. Collective. Prints the table on rank 0. Errors: shard::Error on every rank when a
/// tensor differs.
void verify(const Options& options, UNet& model, const ShardedField& field);

}  // namespace global_field
