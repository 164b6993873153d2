// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace shard {

/// Cores that this process may run on (its affinity mask), at least 1.
int usable_cores();

}  // namespace shard
