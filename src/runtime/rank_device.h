// SPDX-License-Identifier: Apache-2.0
// Which device a rank computes on.
#pragma once

#include <c10/core/Device.h>

#include "comm/device_plugin.h"

namespace shard {

/// The device of thread rank `rank` of `ranks`. Errors: ConfigError when there are fewer GPUs than
/// ranks: LibTorch runs backward on one thread a device, so threads cannot share one.
c10::Device device_of_thread_rank(c10::Device asked, int rank, int ranks);

/// The device of a rank that is a process: "cuda" deals the machine's GPUs out in turn, so that
/// several processes may share one. Collective over `world`. Errors: ConfigError without a GPU.
c10::Device device_of_process_rank(c10::Device asked, CommunicatorBackend& world);

}  // namespace shard
