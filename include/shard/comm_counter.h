// SPDX-License-Identifier: Apache-2.0
// CommCounter: how often and how many bytes each rank communicated, by kind, mesh dim and label
// (the op that caused it). Always on; a scope reads the difference between two points.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

namespace shard {

struct CommCount {
  int64_t calls = 0;
  int64_t bytes = 0;  ///< sent by this rank to other ranks
};

/// Counts of the calling rank since the scope was opened.
class CommCounter {
 public:
  struct Key {
    std::string kind;   ///< "all_reduce", "exchange", ...
    std::string dim;    ///< communicator (mesh dim) name
    std::string label;  ///< innermost CommLabel, "" outside
    auto operator<=>(const Key&) const = default;
  };
  using Table = std::map<Key, CommCount>;

  CommCounter();  ///< opens a scope on the calling rank thread
  Table counts() const;
  int64_t calls() const;                         ///< all kinds
  int64_t calls(const std::string& kind) const;  ///< of one kind
  int64_t bytes() const;
  int64_t bytes(const std::string& kind) const;
  std::string table() const;  ///< aligned text
  std::string json() const;

 private:
  Table start_;
};

/// Names the op on whose behalf the calls inside the scope are made. The string must outlive it.
class CommLabel {
 public:
  explicit CommLabel(const char* label);
  ~CommLabel();
  CommLabel(const CommLabel&) = delete;
  CommLabel& operator=(const CommLabel&) = delete;

 private:
  const char* outer_;
};

}  // namespace shard
