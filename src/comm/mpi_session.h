// SPDX-License-Identifier: Apache-2.0
// The seam between launch and the optional MPI backend. comm/mpi/ implements it, comm/no_mpi.cpp
// stands in for it in builds without MPI.
#pragma once

#include <shard/communicator.h>

#include <chrono>
#include <exception>
#include <memory>
#include <string>

namespace shard {

/// MPI of this process, from MPI_Init to MPI_Finalize. One at a time, one thread.
class MpiSession {
 public:
  virtual ~MpiSession() = default;
  virtual std::shared_ptr<CommunicatorBackend> world() = 0;

  struct Ending {
    bool has_failed = false;  ///< some rank failed, this one or another
    bool is_first =
        false;  ///< this rank's error is the one to print: no consequence of another rank's
  };
  /// Announces how this rank's function ended (`error`: null when it returned) and waits for the
  /// others; after a failure not for long.
  virtual Ending finish(const std::exception_ptr& error) noexcept = 0;
  /// MPI_Finalize; after a failure nothing, or MPI_Abort when some rank has not ended.
  virtual void close() noexcept = 0;
};

bool has_mpi();
/// "Open MPI v4.1.4", or "none"; before and after start_mpi.
std::string describe_mpi();
/// MPI_Init. Errors: ConfigError in a build without MPI.
std::unique_ptr<MpiSession> start_mpi(std::chrono::milliseconds timeout);

}  // namespace shard
