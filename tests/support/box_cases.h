// SPDX-License-Identifier: Apache-2.0
// The box exchange as a linear map on the ranks of a mesh of several dims, each of which cuts a
// tensor dim of its own. For threads and for MPI.
#pragma once

#include <shard/mesh.h>

#include <cstdint>

namespace shard::testing {

/// Random owners and wanted rows of every dim, empty places, repeated and wrapped rows among them:
/// every rank gets its box; <Bx, y> = <x, B'y>, also for the adjoint's own backward, and each of
/// the three takes at most one exchange. The cases follow from `seed`. Collective.
void expect_boxes(const DeviceMesh& mesh, uint64_t seed, int cases);

}  // namespace shard::testing
