// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <c10/util/StringUtil.h>
#include <shard/cuda.h>

#include "comm/device_plugin.h"

namespace shard {

bool cuda_is_available() { return device_plugin() != nullptr && at::getNumGPUs() > 0; }

std::string describe_cuda() {
  const DevicePlugin* plugin = device_plugin();
  if (plugin == nullptr) return c10::str("none: ", device_plugin_error());
  const auto devices = at::getNumGPUs();
  return c10::str(devices, devices == 1 ? " device; " : " devices; ", plugin->versions());
}

}  // namespace shard
