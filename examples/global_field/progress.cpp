// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <shard/memory.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdio>

#include "interrupt.h"

namespace global_field {
namespace {

/// mpirun gives its processes pseudo-terminals and sends on what it reads there, often to a file;
/// so only a job that nobody launched believes that it writes to a terminal.
bool is_on_terminal(const shard::World& world) {
  return world.launcher() == shard::Launcher::Threads && isatty(STDOUT_FILENO) != 0;
}

}  // namespace

Progress::Progress(const Options& options, const shard::World& world, int64_t first_step)
    : steps_(options.steps),
      quiet_(options.quiet || !world.is_root()),
      terminal_(is_on_terminal(world)),
      comm_(world.comm()) {
  if (first_step > 0 && !quiet_)
    std::printf("continuing after step %ld\n", static_cast<long>(first_step));
}

void Progress::begin_step() {
  shard::MemoryAccount::current().reset_peak();
  counter_.emplace();
  step_start_ = std::chrono::steady_clock::now();
}

bool Progress::end_step(int64_t steps_done, double loss) {
  const auto now = std::chrono::steady_clock::now();
  seconds_ += std::chrono::duration<double>(now - step_start_).count();
  ++measured_steps_;
  const Status status = agree();
  const bool due = terminal_ || steps_done % 10 == 0 || steps_done == steps_;
  if (!quiet_ && due) print(steps_done, loss, status);
  return status.interrupted;
}

Progress::Status Progress::agree() const {
  const auto peak = static_cast<double>(shard::MemoryAccount::current().peak());
  const auto halo = static_cast<double>(counter_->bytes("exchange"));
  torch::Tensor mine = torch::tensor({is_interrupted() ? 1.0 : 0.0, halo, peak}, torch::kFloat64);
  comm_.all_reduce(mine, shard::ReduceOp::Max);
  const auto* all = mine.const_data_ptr<double>();
  return {all[0] > 0, all[1], all[2]};
}

void Progress::print(int64_t steps_done, double loss, const Status& status) {
  std::printf("%sstep %4ld/%ld  loss %.5f  %.2f s/step  halo %.2f MB/step  peak %.0f MB/rank%s",
              terminal_ ? "\r" : "", static_cast<long>(steps_done), static_cast<long>(steps_), loss,
              seconds_per_step(), status.halo_bytes / 1e6, status.peak_bytes / 1e6,
              terminal_ ? "  " : "\n");
  std::fflush(stdout);
  line_open_ = terminal_;
}

void Progress::finish() {
  if (line_open_) std::printf("\n");
  line_open_ = false;
}

double Progress::seconds_per_step() const {
  return measured_steps_ == 0 ? 0 : seconds_ / static_cast<double>(measured_steps_);
}

}  // namespace global_field
