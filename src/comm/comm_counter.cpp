// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "comm/comm_log.h"

namespace shard {
namespace {

CommCount sum(const CommCounter::Table& table, const std::string* kind) {
  CommCount total;
  for (const auto& [key, count] : table) {
    if (kind != nullptr && key.kind != *kind) continue;
    total.calls += count.calls;
    total.bytes += count.bytes;
  }
  return total;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) continue;
    out += c;
  }
  return out + '"';
}

}  // namespace

CommCounter::CommCounter() : start_(CommLog::current()->table()) {}

CommCounter::Table CommCounter::counts() const {
  Table table;
  for (const auto& [key, now] : CommLog::current()->table()) {
    const auto before = start_.find(key);
    const CommCount old = before == start_.end() ? CommCount{} : before->second;
    if (now.calls != old.calls) table[key] = {now.calls - old.calls, now.bytes - old.bytes};
  }
  return table;
}

int64_t CommCounter::calls() const { return sum(counts(), nullptr).calls; }
int64_t CommCounter::calls(const std::string& kind) const { return sum(counts(), &kind).calls; }
int64_t CommCounter::bytes() const { return sum(counts(), nullptr).bytes; }
int64_t CommCounter::bytes(const std::string& kind) const { return sum(counts(), &kind).bytes; }

std::string CommCounter::table() const {
  std::ostringstream out;
  const auto row = [&out](const auto& kind, const auto& dim, const auto& label, const auto& calls,
                          const auto& bytes) {
    out << std::left << std::setw(18) << kind << std::setw(12) << dim << std::setw(28) << label
        << std::right << std::setw(10) << calls << std::setw(16) << bytes << '\n';
  };
  row("kind", "mesh dim", "label", "calls", "bytes");
  for (const auto& [key, count] : counts()) {
    row(key.kind, key.dim, key.label, count.calls, count.bytes);
  }
  return out.str();
}

std::string CommCounter::json() const {
  std::string text = "[";
  for (const auto& [key, count] : counts()) {
    if (text.size() > 1) text += ", ";
    text += "{\"kind\": " + quoted(key.kind) + ", \"dim\": " + quoted(key.dim) +
            ", \"label\": " + quoted(key.label) + ", \"calls\": " + std::to_string(count.calls) +
            ", \"bytes\": " + std::to_string(count.bytes) + "}";
  }
  return text + "]";
}

}  // namespace shard
