// SPDX-License-Identifier: Apache-2.0
// The progress line, and what all ranks must agree on between two steps: one small all-reduce a
// step.
#pragma once

#include <shard/comm_counter.h>
#include <shard/launch.h>

#include <chrono>
#include <cstdint>
#include <optional>

#include "options.h"

namespace global_field {

class Progress {
 public:
  Progress(const Options& options, const shard::World& world, int64_t first_step);

  void begin_step();
  /// Collective; call it after every step. Rank 0 prints a line on a terminal, else every ten
  /// steps. True when some rank was asked to stop.
  bool end_step(int64_t steps_done, double loss);
  /// Ends the line; the next output begins on a new one.
  void finish();

  /// Means over the steps so far, of this rank.
  double seconds_per_step() const;

 private:
  struct Status {
    bool interrupted = false;
    double halo_bytes = 0;  ///< largest of all ranks
    double peak_bytes = 0;
  };
  Status agree() const;
  void print(int64_t steps_done, double loss, const Status& status);

  int64_t steps_;
  bool quiet_;
  bool terminal_;
  bool line_open_ = false;
  shard::Communicator comm_;
  int64_t measured_steps_ = 0;
  double seconds_ = 0;
  std::chrono::steady_clock::time_point step_start_;
  std::optional<shard::CommCounter> counter_;
};

}  // namespace global_field
