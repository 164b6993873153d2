// SPDX-License-Identifier: Apache-2.0
#include <shard/build_info.h>
#include <shard/cuda.h>
#include <torch/version.h>

#include <sstream>
#include <thread>

#include "comm/mpi_session.h"
#include "runtime/launch_plan.h"

namespace shard {

std::string describe_build() {
  const auto plan = plan_launch(0, nullptr, {});
  std::ostringstream out;
  out << "LibTorch: " << TORCH_VERSION << '\n'
      << "compiler: " << __VERSION__ << '\n'
      << "options: " << SHARD_BUILD_OPTIONS << '\n'
      << "MPI: " << describe_mpi() << '\n'
      << "CUDA: " << describe_cuda() << '\n'
      << "cores: " << std::thread::hardware_concurrency() << '\n'
      << "launcher: " << (plan.launcher == Launcher::Mpi ? "MPI" : "threads") << ", " << plan.ranks
      << " ranks (" << plan.reason << ")\n";
  return out.str();
}

}  // namespace shard
