// SPDX-License-Identifier: Apache-2.0
// Test only: a mesh whose ranks receive zeros from their neighbours, to show that --verify notices.
#pragma once

#include <shard/mesh.h>

namespace global_field {

/// The mesh of `domain` with exchanges that deliver zeros. Collective.
shard::DeviceMesh lossy_mesh(const shard::DeviceMesh& domain);

}  // namespace global_field
