// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdlib>

namespace shard::testing {

/// SHARD_TEST_DEVICE=cuda: networks, samples and jobs run on GPUs.
inline c10::Device device_under_test() {
  const char* device = std::getenv("SHARD_TEST_DEVICE");
  return device == nullptr ? c10::Device(c10::kCPU) : c10::Device(device);
}

}  // namespace shard::testing
