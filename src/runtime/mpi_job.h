// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <shard/launch.h>

#include <string>

namespace shard {

/// Runs `body` as one rank of an MPI job and returns this process's exit code.
int launch_mpi(const std::string& reason, const RankFunction& body, const LaunchOptions& options,
               std::optional<int> intra_op_threads);

}  // namespace shard
