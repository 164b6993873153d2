// SPDX-License-Identifier: Apache-2.0
#include "comm/device_plugin.h"

#include <dlfcn.h>
#include <shard/environment.h>
#include <shard/error.h>
#include <shard/log.h>

#include <filesystem>
#include <mutex>
#include <set>

#include "comm/staged/staged_backend.h"

namespace shard {
namespace {

const DevicePlugin* registered = nullptr;

struct Loaded {
  const DevicePlugin* plugin = nullptr;
  std::string error;
};

/// Where libshard itself was loaded from.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&register_device_plugin), &info) == 0) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

Loaded load() {
  const auto path = own_folder() / "libshard_cuda.so";
  if (!std::filesystem::exists(path)) return {nullptr, "this build has no libshard_cuda.so"};
  // Global: LibTorch's own libraries look up each other's symbols.
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) return {nullptr, dlerror()};
  return {registered, registered == nullptr ? path.string() + " registers nothing" : ""};
}

const Loaded& loaded() {
  static const Loaded result = load();
  return result;
}

/// Whether every rank has the plugin and a device that no other rank has. Collective.
bool has_a_device_each(const CommunicatorBackend& host,
                       const std::vector<std::string>& identities) {
  const std::set<std::string> distinct(identities.begin(), identities.end());
  return distinct.count("") == 0 && distinct.size() == static_cast<size_t>(host.size());
}

}  // namespace

void register_device_plugin(const DevicePlugin* plugin) { registered = plugin; }
const DevicePlugin* device_plugin() { return loaded().plugin; }
const std::string& device_plugin_error() { return loaded().error; }

void check_one_kind(const std::vector<std::string>& kinds) {
  for (size_t rank = 0; rank < kinds.size(); ++rank) {
    check<ConfigError>(kinds[rank] == kinds[0], "launch", "device: got ", kinds[rank], " on rank ",
                       rank, "; expected ", kinds[0],
                       ", as on rank 0, so that all ranks compute the same. Use GPUs of one kind.");
  }
}

std::shared_ptr<CommunicatorBackend> backend_for(std::shared_ptr<CommunicatorBackend> host,
                                                 c10::Device device) {
  if (device.is_cpu()) return host;
  if (host->size() > 1) {
    const DevicePlugin* any = device_plugin();
    check_one_kind(host->all_gather_bytes(any ? any->kind(device) : ""));
  }
  const DevicePlugin* plugin = environment().staged_devices ? nullptr : device_plugin();
  const auto identities = host->size() == 1
                              ? std::vector<std::string>{""}
                              : host->all_gather_bytes(plugin ? plugin->identity(device) : "");
  if (has_a_device_each(*host, identities)) return plugin->make_backend(std::move(host), device);
  if (host->rank() == 0 && host->size() > 1) {
    log(LogLevel::Info, "devices: tensors travel over the host, since ",
        environment().staged_devices ? "SHARD_DEVICE_COMM=staged" : "ranks share a GPU");
  }
  return std::make_shared<StagedBackend>(std::move(host));
}

}  // namespace shard
