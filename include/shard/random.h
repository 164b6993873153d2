// SPDX-License-Identifier: Apache-2.0
// The random numbers of one device on sharded tensors: docs/random-numbers.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/mesh.h>
#include <shard/spec.h>

namespace shard {

/// New tensors of a global shape with the numbers that torch::rand (uniform in [0, 1)) and
/// torch::randn (standard normal) give one device; every rank allocates its own part only. All
/// ranks call with equal generators. `partition`: piece sizes of a Shard (empty: even_partition).
/// No communication. Errors: SpecMismatch for Partial.
at::Tensor rand(c10::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
                at::TensorOptions options = {}, Partition partition = {});
at::Tensor randn(c10::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
                 at::TensorOptions options = {}, Partition partition = {});

}  // namespace shard
