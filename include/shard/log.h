// SPDX-License-Identifier: Apache-2.0
// Logging to stderr, one line a call, each prefixed once with level and world rank.
#pragma once

#include <c10/util/StringUtil.h>

#include <string>

namespace shard {

enum class LogLevel : int { Debug, Info, Warning, Error, Off };

/// The least level printed. Initially from SHARD_LOG (debug, info, warning, error, off); default
/// warning.
void set_log_level(LogLevel level);
LogLevel log_level();
/// The world rank that log lines of the calling thread carry (-1: none). Set by `launch`.
void set_log_rank(int world_rank);
int log_rank();
void log_line(LogLevel level, const std::string& text);

template <class... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (level >= log_level()) log_line(level, c10::str(parts...));
}

}  // namespace shard
