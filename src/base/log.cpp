// SPDX-License-Identifier: Apache-2.0
#include <shard/environment.h>
#include <shard/log.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "base/parse.h"
#include "base/rank_context.h"

namespace shard {
namespace {

thread_local int thread_rank = -1;

std::atomic<LogLevel>& level_cell() {
  static std::atomic<LogLevel> level{parse_log_level(environment().log)};
  return level;
}

std::string prefix(LogLevel level) {
  const int rank = log_rank();
  std::string text = rank < 0 ? "[shard] " : c10::str("[shard rank ", rank, "] ");
  if (level == LogLevel::Warning) text += "warning: ";
  if (level == LogLevel::Error) text += "error: ";
  return text;
}

}  // namespace

LogLevel parse_log_level(const std::string& name) {
  constexpr std::array<const char*, 5> kNames{"debug", "info", "warning", "error", "off"};
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<LogLevel>(i);
  }
  raise<ConfigError>("SHARD_LOG", "got '", name,
                     "'; expected debug, info, warning, error or off. Set or unset it.");
}

void set_log_level(LogLevel level) { level_cell().store(level, std::memory_order_relaxed); }
LogLevel log_level() { return level_cell().load(std::memory_order_relaxed); }

void set_log_rank(int world_rank) { thread_rank = world_rank; }

int log_rank() {
  if (thread_rank >= 0) return thread_rank;
  const RankContext* context = rank_context();
  return context != nullptr ? context->world_rank : -1;
}

void log_line(LogLevel level, const std::string& text) {
  const std::string line = prefix(level) + text + "\n";
  // One write a line: lines of ranks (threads or processes) do not mix.
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t n = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

}  // namespace shard
