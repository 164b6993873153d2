// SPDX-License-Identifier: Apache-2.0
#include <shard/environment.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <vector>

#include "base/parse.h"

namespace shard {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

/// Whether `name` is set to `on` rather than to `off`, its default.
bool is_on(const char* name, const char* on, const char* off) {
  const auto text = variable(name);
  if (!text) return false;
  check<ConfigError>(*text == on || *text == off, name, "got '", *text, "'; expected ", on, " or ",
                     off, " (the default). Set or unset it.");
  return *text == on;
}

/// The value of `name`, one of `choices`; the first where it is not set.
std::string one_of(const char* name, std::initializer_list<const char*> choices) {
  const auto text = variable(name);
  if (!text) return *choices.begin();
  const bool is_known = std::find(choices.begin(), choices.end(), *text) != choices.end();
  check<ConfigError>(is_known, name, "got '", *text, "'; expected one of ",
                     c10::Join(", ", std::vector<std::string>(choices.begin(), choices.end())),
                     ". Set or unset it.");
  return *text;
}

}  // namespace

Environment read_environment() {
  Environment env;
  if (const auto text = variable("SHARD_RANKS")) env.ranks = parse_count("SHARD_RANKS", *text);
  if (const auto text = variable("SHARD_THREADS"))
    env.threads = parse_count("SHARD_THREADS", *text);
  if (const auto text = variable("SHARD_TIMEOUT")) {
    env.timeout = parse_seconds("SHARD_TIMEOUT", *text);
  }
  if (const auto text = variable("SHARD_LOG")) {
    parse_log_level(*text);
    env.log = *text;
  }
  env.system_memory = is_on("SHARD_CPU_MEMORY", "system", "keep");
  env.staged_devices = is_on("SHARD_DEVICE_COMM", "staged", "auto");
  env.check_nccl = is_on("SHARD_CHECK_NCCL", "1", "0");
  env.attention = one_of("SHARD_ATTENTION", {"auto", "ring", "balanced", "heads"});
  env.explain = is_on("SHARD_EXPLAIN", "1", "0");
  env.gather_fallback = is_on("SHARD_FALLBACK", "gather", "refuse");
  env.check_replicated = is_on("SHARD_CHECK_REPLICATED", "1", "0");
  return env;
}

const Environment& environment() {
  static const Environment env = read_environment();
  return env;
}

}  // namespace shard
