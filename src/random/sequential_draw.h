// SPDX-License-Identifier: Apache-2.0
// Parts of a draw on a CPU: NOTE [Streams of random numbers].
#pragma once

#include "random/runs.h"
#include "random/sampler.h"

namespace shard {

/// Each number is made of the generator's next words.
struct SequentialDraw : Draw {
  /// The numbers in the runs, contiguous. Draws all of them, block by block, and so leaves the
  /// generator behind the whole draw, also for no runs.
  at::Tensor part(const Runs& runs) const;
};

}  // namespace shard
