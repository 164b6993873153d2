// SPDX-License-Identifier: Apache-2.0
// SignalReport: what every rank of this process communicated last, on request. While one lives,
// SIGUSR1 prints it to stderr; SIGTERM, which mpirun sends to the peers of a rank that died, prints
// it and then ends the process as usual. A program's own handlers are left alone.
#pragma once

#include <array>
#include <memory>
#include <thread>

namespace shard {

class CommLog;

class SignalReport {
 public:
  SignalReport();
  ~SignalReport();
  SignalReport(const SignalReport&) = delete;
  SignalReport& operator=(const SignalReport&) = delete;

  /// Makes a rank's log part of the report until it is destroyed.
  static void add(int world_rank, const std::shared_ptr<CommLog>& log);

 private:
  void print_when_asked() const;
  std::array<int, 2> pipe_{-1, -1};  ///< signal handlers may only write
  std::thread thread_;
};

}  // namespace shard
