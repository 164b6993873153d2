// SPDX-License-Identifier: Apache-2.0
// Checked parsing of user-given text (environment variables, flags). `where` is the variable or
// flag that the error names.
#pragma once

#include <shard/error.h>
#include <shard/log.h>

#include <chrono>
#include <string>

namespace shard {

/// A whole number >= 1. Errors: ConfigError.
int parse_count(const std::string& where, const std::string& text);
/// Seconds > 0, fractions allowed. Errors: ConfigError.
std::chrono::milliseconds parse_seconds(const std::string& where, const std::string& text);
LogLevel parse_log_level(const std::string& name);

}  // namespace shard
