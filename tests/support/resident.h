// SPDX-License-Identifier: Apache-2.0
// The memory of this process as the kernel sees it, fragmentation included.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace shard::testing {

inline int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace shard::testing
