// SPDX-License-Identifier: Apache-2.0
#include "runtime/signal_report.h"

#include <shard/error.h>
#include <shard/log.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <vector>

#include "comm/comm_log.h"

namespace shard {
namespace {

constexpr std::array kSignals{SIGUSR1, SIGTERM};
constexpr unsigned char kEnd = 0;

std::atomic<int> pipe_end{-1};

void ask(int signal) {
  const auto byte = static_cast<unsigned char>(signal);
  const int saved = errno;
  [[maybe_unused]] const auto written = ::write(pipe_end.load(), &byte, 1);
  errno = saved;
}

/// Installs or removes `ask`; signals that the program handles itself are left alone.
void set_handlers(bool on) {
  for (const int signal : kSignals) {
    struct sigaction current = {};
    sigaction(signal, nullptr, &current);
    if (current.sa_handler != (on ? SIG_DFL : ask)) continue;
    struct sigaction action = {};
    action.sa_handler = on ? ask : SIG_DFL;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
}

class Logs {
 public:
  void add(int world_rank, const std::shared_ptr<CommLog>& log) {
    const std::lock_guard lock(mutex_);
    std::erase_if(logs_, [](const auto& entry) { return entry.second.expired(); });
    logs_.emplace_back(world_rank, log);
  }
  void print() {
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, weak] : logs_) {
      const auto log = weak.lock();
      if (!log) continue;
      const auto calls = log->recent_calls();
      log_line(LogLevel::Error,
               c10::str("last calls of rank ", rank, ":\n", calls.empty() ? "  none" : calls));
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<int, std::weak_ptr<CommLog>>> logs_;
};

Logs& logs() {
  static auto* instance = new Logs;
  return *instance;
}

}  // namespace

SignalReport::SignalReport() {
  if (pipe_end.load() >= 0) return;  // an outer one is at work
  check<ConfigError>(::pipe(pipe_.data()) == 0, "launch", "got no pipe: ", std::strerror(errno),
                     "; expected a free file descriptor. Close files or raise ulimit -n.");
  pipe_end = pipe_[1];
  thread_ = std::thread([this] { print_when_asked(); });
  set_handlers(true);
}

SignalReport::~SignalReport() {
  if (!thread_.joinable()) return;
  set_handlers(false);
  ask(kEnd);
  thread_.join();
  pipe_end = -1;
  ::close(pipe_[0]);
  ::close(pipe_[1]);
}

void SignalReport::add(int world_rank, const std::shared_ptr<CommLog>& log) {
  logs().add(world_rank, log);
}

void SignalReport::print_when_asked() const {
  for (;;) {
    unsigned char signal = kEnd;
    const auto count = ::read(pipe_[0], &signal, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || signal == kEnd) return;
    logs().print();
    if (signal == SIGUSR1) continue;
    set_handlers(false);
    std::raise(signal);
  }
}

}  // namespace shard
