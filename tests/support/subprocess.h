// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace shard::testing {

struct Finished {
  int code = -1;       ///< exit code; 128 + n after signal n
  std::string output;  ///< stdout and stderr
  std::chrono::duration<double> elapsed{};
};

/// Runs a shell command, at most 100 s.
Finished run_command(const std::string& command);

/// The path of the running test executable, to start it again.
std::string own_executable();

bool has_mpirun();
/// `mpirun -n ranks program`, also as root and with more ranks than cores; `variables`: "A=1 B=2".
Finished run_mpi(int ranks, const std::string& program, const std::string& variables = "");

/// How often `part` occurs in `text`.
int occurrences(const std::string& text, const std::string& part);

}  // namespace shard::testing
