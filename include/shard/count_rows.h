// SPDX-License-Identifier: Apache-2.0
// Pieces that are known only when they are there: see NOTE [Counted results].
#pragma once

#include <shard/mesh.h>
#include <shard/spec.h>

namespace shard {

/// How many rows every rank of `mesh` has. Collective; on every rank the same.
Partition count_rows(int64_t own, const DeviceMesh& mesh);

/// Adds up the pieces.
int64_t total_of(const Partition& partition);
int64_t total_of(const std::vector<Rows>& pieces);

}  // namespace shard
