// SPDX-License-Identifier: Apache-2.0
#include "dispatch/self_test.h"

#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <shard/error.h>
#include <shard/log.h>
#include <torch/version.h>

#include <cstdlib>
#include <string>

#include "tensor/keys.h"

namespace shard {
namespace {

using c10::DispatchKey;

static_assert(kFunctionKey > DispatchKey::AutocastCPU &&
                  kFunctionKey > DispatchKey::AutogradFunctionality,
              "the function level must lie above autocast and autograd");
static_assert(kDispatchKey < DispatchKey::AutogradFunctionality &&
                  kDispatchKey > DispatchKey::Dense,
              "the dispatch level must lie below autograd and above every backend");

/// at::show_config() of the loaded library holds "TORCH_VERSION=2.11.0, ".
std::string loaded_version() {
  const std::string config = at::show_config();
  const std::string tag = "TORCH_VERSION=";
  const auto begin = config.find(tag);
  if (begin == std::string::npos) return "unknown";
  return config.substr(begin + tag.size(),
                       config.find_first_of(",\n ", begin) - begin - tag.size());
}

void check_version() {
  const std::string built = std::to_string(TORCH_VERSION_MAJOR) + "." +
                            std::to_string(TORCH_VERSION_MINOR) + "." +
                            std::to_string(TORCH_VERSION_PATCH);
  const std::string loaded = loaded_version();
  check<ConfigError>(loaded.rfind(built, 0) == 0, "load", "got LibTorch ", loaded, "; expected ",
                     built,
                     ", which libshard was built with. Rebuild it, or load the other LibTorch.");
}

void check_keys() {
  // The names come from the loaded library, the numbers from the headers.
  check<ConfigError>(std::string(c10::toString(kFunctionKey)) == "DeferredInit" &&
                         std::string(c10::toString(kDispatchKey)) == "Fake",
                     "load", "got dispatch keys ", c10::toString(kFunctionKey), " and ",
                     c10::toString(kDispatchKey),
                     "; expected DeferredInit and Fake. The loaded LibTorch "
                     "is not the one whose headers libshard was built with.");
}

}  // namespace

void check_libtorch() {
  static const bool done = [] {
    try {
      check_version();
      check_keys();
    } catch (const ConfigError& error) {  // while libraries are loaded nobody could catch it
      log_line(LogLevel::Error, error.what_without_backtrace());
      std::_Exit(1);
    }
    return true;
  }();
  (void)done;
}

}  // namespace shard
