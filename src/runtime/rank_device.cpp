// SPDX-License-Identifier: Apache-2.0
#include "runtime/rank_device.h"

#include <ATen/Context.h>
#include <shard/cuda.h>
#include <shard/error.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

namespace shard {
namespace {

void check_device(c10::Device asked) {
  if (asked.is_cpu()) return;
  check<ConfigError>(asked.is_cuda(), "launch", "device: got ", asked,
                     "; expected cpu or cuda. Choose one of the two.");
  if (cuda_is_available()) return;
  raise<ConfigError>("launch", "device: got ", asked, "; expected cpu, since no GPU can be used (",
                     describe_cuda(),
                     "). Leave the device out, or build and run where there is "
                     "a GPU.");
}

c10::Device nth_device(c10::Device asked, int place) {
  if (asked.is_cpu() || asked.has_index()) return asked;
  const auto count = static_cast<int>(at::getNumGPUs());
  return {asked.type(), static_cast<c10::DeviceIndex>(place % count)};
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace

c10::Device device_of_thread_rank(c10::Device asked, int rank, int ranks) {
  check_device(asked);
  if (asked.is_cpu()) return asked;
  const int devices = asked.has_index() ? 1 : static_cast<int>(at::getNumGPUs());
  check<ConfigError>(ranks <= devices, "launch", "thread ranks on ", asked, ": got ", ranks,
                     "; expected at most ", devices,
                     ", one a GPU. Start processes, which may share one: mpirun -n ", ranks, ".");
  return nth_device(asked, rank);
}

c10::Device device_of_process_rank(c10::Device asked, CommunicatorBackend& world) {
  check_device(asked);
  if (asked.is_cpu() || world.size() == 1) return nth_device(asked, 0);
  const auto hosts = world.all_gather_bytes(host_name());
  const auto own = hosts.begin() + world.rank();
  return nth_device(asked, static_cast<int>(std::count(hosts.begin(), own, *own)));
}

}  // namespace shard
