// SPDX-License-Identifier: Apache-2.0
// What holds for every move between placements, on the ranks of a mesh. Threads check it on meshes
// of many shapes (tests/tensor), MPI on those of the ranks there are (tests/launch).
#pragma once

#include <shard/mesh.h>

#include <cstdint>
#include <vector>

namespace shard::testing {

/// On a 1-d mesh, from every placement and split to every other one. Collective.
void expect_moves_keep_the_value(const DeviceMesh& mesh);
/// <R x, y> == <x, R' y> on global values, for leaves with distinct values. Collective.
void expect_backward_moves_are_adjoint(const DeviceMesh& mesh);
/// Values and gradients when dims are shorter than the mesh, so that some ranks get nothing.
/// Collective.
void expect_short_dims_move(const DeviceMesh& mesh);

/// On any mesh: random shapes, placements and partitions, one after the other: values, local boxes
/// and specs are right after every step, and the backward of the whole walk is the identity.
/// Collective.
void expect_walks_keep_the_value(const DeviceMesh& mesh, int walks);

}  // namespace shard::testing
