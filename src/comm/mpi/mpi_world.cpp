// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_world.h"

#include "base/cores.h"
#include "comm/mpi/mpi_call.h"
#include "comm/mpi/mpi_patience.h"
#include "comm/mpi/mpi_transfer.h"

namespace shard {
namespace {

/// Polls before the first yield: none when the ranks on this machine outnumber its cores.
int spins_on_this_machine(MPI_Comm base) {
  MPI_Comm local = MPI_COMM_NULL;
  int ranks = 1;
  check_mpi(MPI_Comm_split_type(base, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local),
            "MPI_Comm_split_type");
  MPI_Comm_size(local, &ranks);
  MPI_Comm_free(&local);
  return ranks <= usable_cores() ? 2000 : 0;
}

MPI_Comm duplicate(MPI_Comm base) {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(base, &copy), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  return copy;
}

}  // namespace

MpiWorld::MpiWorld(MPI_Comm base, std::chrono::milliseconds timeout)
    : data_(duplicate(base)),
      control_(base),
      timeout_(timeout),
      spins_(spins_on_this_machine(base)) {}

void MpiWorld::wait(MpiRequests& waiting, const MessageOperation& operation,
                    const std::function<void(size_t)>& on_done) {
  auto held = lock();
  raise_if_failed(operation);
  MpiPatience patience(*this, operation, waiting, spins_, timeout_);
  std::vector<int> done;
  for (;;) {
    done.resize(waiting.requests.size());  // on_done may have added requests
    int completed = 0;
    check_mpi(MPI_Testsome(static_cast<int>(done.size()), waiting.requests.data(), &completed,
                           done.data(), MPI_STATUSES_IGNORE),
              "MPI_Testsome");
    if (completed == MPI_UNDEFINED) return;  // nothing is under way any more
    for (int i = 0; i < completed; ++i) on_done(static_cast<size_t>(done[static_cast<size_t>(i)]));
    if (completed == 0) patience.pause(held);
  }
}

void MpiWorld::begin(const MessageOperation& operation) {
  const auto held = lock();
  control_.note(operation.tag, {operation.number, operation.kind});
  raise_if_failed(operation);
}

void MpiWorld::move(const MessageOperation& operation, const MessageRoundPlan& plan,
                    const std::shared_ptr<void>& memory) {
  auto transfer = std::make_shared<MpiTransfer>(*this, operation, plan, memory);
  try {
    transfer->run();
  } catch (...) {
    keep_for_good(std::move(transfer));
    throw;
  }
}

}  // namespace shard
