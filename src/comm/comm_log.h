// SPDX-License-Identifier: Apache-2.0
// CommLog: what one rank communicated: totals by kind, mesh dim and label (read through
// CommCounter) and the last calls one by one (the flight recorder, printed when a wait times out).
#pragma once

#include <c10/core/ScalarType.h>
#include <shard/comm_counter.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "comm/comm_kind.h"

namespace shard {

/// The innermost CommLabel of the calling thread, "" outside.
const char* current_label();

/// The rank that it belongs to writes it; others may read the last calls meanwhile.
class CommLog {
 public:
  /// The log of the rank that the calling thread works for; without a rank, the thread's own.
  static const std::shared_ptr<CommLog>& current();

  struct Call {
    CommKind kind = CommKind::None;
    const std::string* dim = nullptr;
    int64_t bytes = 0;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
  };
  /// Counts the call and notes it as waiting, until finish() with the number that is returned.
  uint64_t start(const Call& call);
  void finish(uint64_t number);

  CommCounter::Table table() const;
  /// The last calls, oldest first, one line each.
  std::string recent_calls() const;
  /// Prints recent_calls() to stderr, the first time it is called.
  void print_recent_calls_once(const std::string& communicator);

 private:
  static constexpr size_t kRecent = 64;
  struct Entry {
    Call call;
    std::array<char, 24> dim{};
    std::array<char, 40> label{};
    bool is_done = false;
  };
  struct KeyView {
    CommKind kind;
    std::string_view dim;
    std::string_view label;
    bool operator==(const KeyView&) const = default;
  };
  struct Hash {
    size_t operator()(const KeyView& key) const;
  };
  struct Count : CommCount {
    std::string dim, label;  ///< what the key's views point to
  };
  CommCount& count_of(const KeyView& key);

  std::unordered_map<KeyView, std::unique_ptr<Count>, Hash> counts_;
  mutable std::mutex mutex_;  // of what recent_calls() reads
  std::array<Entry, kRecent> recent_;
  uint64_t started_ = 0;
  bool is_printed_ = false;
};

}  // namespace shard
