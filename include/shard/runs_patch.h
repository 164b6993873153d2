// SPDX-License-Identifier: Apache-2.0
// Runs of equal rows that go on from one rank to the next.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/mesh.h>

namespace shard {

/// Rows of which none repeats (the one before): which of them every element is, and how often each
/// occurs.
struct Distinct {
  at::Tensor values, inverse, counts;
};

/// The runs that begin on this rank, as long as they are over all ranks, and for every element
/// (Distinct::inverse) which run it is in. `own`: those of this rank's part, plain. Collective.
Distinct joined_over_ranks(const Distinct& own, const DeviceMesh& mesh);

}  // namespace shard
