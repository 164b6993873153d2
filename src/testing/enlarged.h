// SPDX-License-Identifier: Apache-2.0
// Samples are small; what they cost shows on large ones.
#pragma once

#include <shard/testing.h>

#include <optional>

namespace shard::testing {

/// The sample with its inputs repeated along the dims that are cut until the largest cut one has
/// hundreds of rows; their sizes are then multiples of four. If plain LibTorch refuses that, all
/// dims of the same sizes are repeated, of weights too. nullopt: it refuses that as well.
std::optional<Sample> enlarged(const Sample& sample);

}  // namespace shard::testing
