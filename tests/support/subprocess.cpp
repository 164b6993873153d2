// SPDX-License-Identifier: Apache-2.0
#include "support/subprocess.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <stdexcept>

namespace shard::testing {

Finished run_command(const std::string& command) {
  Finished finished;
  const auto begin = std::chrono::steady_clock::now();
  FILE* pipe = popen(("{ timeout 100 env " + command + "; } 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run: " + command);
  std::array<char, 4096> buffer{};
  size_t n = 0;
  while ((n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0) {
    finished.output.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  finished.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  finished.elapsed = std::chrono::steady_clock::now() - begin;
  return finished;
}

std::string own_executable() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

bool has_mpirun() { return run_command("mpirun --version").code == 0; }

Finished run_mpi(int ranks, const std::string& program, const std::string& variables) {
  return run_command(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 "
      "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none "
      "OMPI_MCA_mpi_yield_when_idle=1 " +
      variables + " mpirun -n " + std::to_string(ranks) + " " + program);
}

int occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace shard::testing
