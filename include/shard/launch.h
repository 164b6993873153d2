// SPDX-License-Identifier: Apache-2.0
// launch: runs one function on every rank, as threads of this process or as one process a rank, and
// turns the first failing rank's error into the program's exit code.
#pragma once

#include <ATen/core/Generator.h>
#include <shard/mesh.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace shard {

enum class Launcher : uint8_t { Threads, Mpi };

struct LaunchOptions {
  /// Thread ranks; nullopt: SHARD_RANKS, else the launcher's count, else `default_ranks`.
  std::optional<int> ranks = std::nullopt;
  int default_ranks = 1;
  c10::Device device = c10::kCPU;
  uint64_t seed = 0;  ///< every rank's default generator starts from it
  /// How long a wait for other ranks may last; nullopt: SHARD_TIMEOUT.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// Intra-op threads a rank; nullopt: SHARD_THREADS, else 1 (a single rank of `launch`: LibTorch's
  /// setting).
  std::optional<int> threads = std::nullopt;
};

/// What a rank knows about the job. Valid while the rank function runs.
class World {
 public:
  World(Communicator comm, Launcher launcher, c10::Device device);
  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  bool is_root() const { return rank() == 0; }
  const Communicator& comm() const { return comm_; }
  Launcher launcher() const { return launcher_; }
  c10::Device device() const { return device_; }
  /// Collective. Sizes may hold one -1 (whatever is left).
  DeviceMesh mesh(std::vector<MeshDim> dims) const;
  /// Collective: a 1-d mesh named "domain" over all ranks.
  DeviceMesh mesh() const { return mesh({{"domain", -1}}); }

 private:
  Communicator comm_;
  Launcher launcher_;
  c10::Device device_;
};

using RankFunction = std::function<void(World&)>;

/// Runs `body` on every rank and returns the exit code (0, or 1 when a rank failed; the first
/// failing rank's error is printed once, prefixed with its rank). `argc/argv`: `--ranks N` is read
/// and left in place. Order: --ranks / options.ranks / SHARD_RANKS (threads); then MPI when started
/// by mpirun or srun (several tasks); else options.default_ranks.
int launch(int argc, char** argv, const RankFunction& body, LaunchOptions options = {});

/// Runs `body` on `ranks` thread ranks of this process and rethrows the first failing rank's
/// exception after all have ended. The work-horse of tests.
void run_ranks(int ranks, const RankFunction& body, LaunchOptions options = {});

/// Seeds the calling rank's default generators (torch::manual_seed alone does not reach them).
void manual_seed(uint64_t seed);
/// The default CPU generator of the calling rank (the process's own outside `launch`).
at::Generator default_generator();

}  // namespace shard
