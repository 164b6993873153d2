// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <shard/mesh.h>

#include <memory>

namespace shard {

/// Resolves a size of -1 and checks the dims against the number of ranks. Errors: ConfigError.
std::vector<MeshDim> resolve_dims(std::vector<MeshDim> dims, int64_t ranks);

/// Equal layouts that are alive share one object, so comparing them is mostly a comparison of
/// pointers, also between thread ranks.
std::shared_ptr<const MeshLayout> intern(MeshLayout layout);

}  // namespace shard
