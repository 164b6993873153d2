// SPDX-License-Identifier: Apache-2.0
#include <shard/error.h>

#include "comm/mpi_session.h"

namespace shard {

bool has_mpi() { return false; }

std::string describe_mpi() { return "none"; }

std::unique_ptr<MpiSession> start_mpi(std::chrono::milliseconds /*timeout*/) {
  raise<ConfigError>(
      "launch",
      "MPI: got a job started by mpirun; expected thread ranks, since this build has no "
      "MPI. Install an MPI library and build again, or use --ranks N without mpirun.");
}

}  // namespace shard
