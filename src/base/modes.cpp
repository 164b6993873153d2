// SPDX-License-Identifier: Apache-2.0
#include <shard/environment.h>
#include <shard/error.h>
#include <shard/modes.h>

namespace shard {
namespace {

/// When the library is loaded nobody can catch an error: launch() reads the environment again.
bool initially(bool Environment::*mode) {
  try {
    return environment().*mode;
  } catch (const ConfigError&) {
    return false;
  }
}

std::atomic<bool> gather_fallback{initially(&Environment::gather_fallback)};
std::atomic<bool> check_replicated{initially(&Environment::check_replicated)};

}  // namespace

namespace detail {
std::atomic<bool> explain{initially(&Environment::explain)};
}  // namespace detail

void set_explain(bool on) { detail::explain = on; }

void set_fallback_mode(FallbackMode mode) { gather_fallback = mode == FallbackMode::Gather; }
FallbackMode fallback_mode() {
  return gather_fallback.load(std::memory_order_relaxed) ? FallbackMode::Gather
                                                         : FallbackMode::Refuse;
}

void set_check_replicated(bool on) { check_replicated = on; }
bool checks_replicated() { return check_replicated.load(std::memory_order_relaxed); }

}  // namespace shard
