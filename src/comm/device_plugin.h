// SPDX-License-Identifier: Apache-2.0
// The seam between libshard and libshard_cuda.so, which registers itself here when it is loaded.
#pragma once

#include <c10/core/Device.h>
#include <shard/communicator.h>

#include <memory>
#include <string>
#include <vector>

namespace shard {

struct DevicePlugin {
  /// Differs between any two devices of the job: host and bus address.
  std::string (*identity)(c10::Device device);
  /// Equal for devices that compute alike: model and size.
  std::string (*kind)(c10::Device device);
  /// A backend whose tensors stay on `device`; everything else goes over `host`. Collective; every
  /// rank has a device of its own.
  std::shared_ptr<CommunicatorBackend> (*make_backend)(std::shared_ptr<CommunicatorBackend> host,
                                                       c10::Device device);
  /// "CUDA 13.0, cuDNN 9.13, NCCL 2.28.9"
  std::string (*versions)();
};

/// Called by the plugin. `plugin` must live for ever.
void register_device_plugin(const DevicePlugin* plugin);

/// The plugin, loaded by the first call; nullptr: not there, or cannot be loaded.
const DevicePlugin* device_plugin();
/// Why device_plugin() is nullptr.
const std::string& device_plugin_error();

/// ConfigError unless all ranks have devices of one kind: other GPUs round differently and draw
/// other random numbers, so that replicated tensors would drift apart.
void check_one_kind(const std::vector<std::string>& kinds);

/// What moves tensors of `device` between these ranks: `host` itself for the CPU; for GPUs the
/// plugin's backend when every rank has a GPU of its own, else a StagedBackend over `host`.
/// Collective over `host`. Errors: check_one_kind.
std::shared_ptr<CommunicatorBackend> backend_for(std::shared_ptr<CommunicatorBackend> host,
                                                 c10::Device device);

}  // namespace shard
