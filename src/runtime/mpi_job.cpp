// SPDX-License-Identifier: Apache-2.0
#include "runtime/mpi_job.h"

#include <c10/core/DeviceGuard.h>
#include <shard/environment.h>
#include <shard/log.h>

#include "base/exception_text.h"
#include "comm/mpi_session.h"
#include "runtime/rank_device.h"
#include "runtime/rank_scope.h"

namespace shard {
namespace {

std::exception_ptr run_rank(const RankFunction& body, MpiSession& session, c10::Device asked) {
  try {
    const c10::Device device = device_of_process_rank(asked, *session.world());
    const c10::DeviceGuard guard(device);
    World world(Communicator(backend_for(session.world(), device), "world"), Launcher::Mpi, device);
    body(world);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

int launch_mpi(const std::string& reason, const RankFunction& body, const LaunchOptions& options,
               std::optional<int> intra_op_threads) {
  const auto session = start_mpi(options.timeout.value_or(environment().timeout));
  const int rank = session->world()->rank();
  // One rank a process: LibTorch's default generator is the rank's.
  const RankScope scope({rank, std::nullopt, intra_op_threads});
  manual_seed(options.seed);
  if (rank == 0) {
    log(LogLevel::Info, "launcher: ", session->world()->size(), " MPI ranks (", reason, ")");
  }
  const std::exception_ptr error = run_rank(body, *session, options.device);
  const MpiSession::Ending ending = session->finish(error);
  if (ending.is_first) log_line(LogLevel::Error, exception_text(error));
  session->close();
  return ending.has_failed ? 1 : 0;
}

}  // namespace shard
