// SPDX-License-Identifier: Apache-2.0
// Stands in for comm/c10d/ in builds whose LibTorch has no c10d.
#include <shard/error.h>
#include <shard/process_group.h>

namespace shard {

Communicator from_process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& /*group*/,
                                std::optional<std::chrono::milliseconds> /*timeout*/,
                                c10::Device /*device*/) {
  raise<ConfigError>("from_process_group",
                     "got a process group; expected a LibTorch built with c10d. Install one (`make "
                     "bootstrap`) and build again, or use thread or MPI ranks.");
}

}  // namespace shard
