// SPDX-License-Identifier: Apache-2.0
#include "comm/comm_log.h"

#include <c10/util/StringUtil.h>
#include <shard/log.h>

#include <algorithm>
#include <cstring>

#include "base/rank_context.h"

namespace shard {
namespace {

thread_local const char* thread_label = "";

template <size_t n>
void assign(std::array<char, n>& to, const char* text) {
  const size_t length = std::min(std::strlen(text), n - 1);
  std::memcpy(to.data(), text, length);
  to[length] = '\0';
}

}  // namespace

const char* current_label() { return thread_label; }

CommLabel::CommLabel(const char* label) : outer_(thread_label) { thread_label = label; }
CommLabel::~CommLabel() { thread_label = outer_; }

const std::shared_ptr<CommLog>& CommLog::current() {
  const RankContext* context = rank_context();
  if (context != nullptr && context->comm_log) return context->comm_log;
  thread_local const auto own = std::make_shared<CommLog>();
  return own;
}

size_t CommLog::Hash::operator()(const KeyView& key) const {
  const std::hash<std::string_view> hash;
  return (hash(key.dim) * 31 + hash(key.label)) * 31 + static_cast<size_t>(key.kind);
}

CommCount& CommLog::count_of(const KeyView& key) {
  const auto found = counts_.find(key);
  if (found != counts_.end()) return *found->second;
  auto count = std::make_unique<Count>();
  count->dim = key.dim;
  count->label = key.label;
  const KeyView kept{key.kind, count->dim, count->label};
  return *counts_.emplace(kept, std::move(count)).first->second;
}

uint64_t CommLog::start(const Call& call) {
  CommCount& count = count_of({call.kind, *call.dim, thread_label});
  ++count.calls;
  count.bytes += call.bytes;
  const std::lock_guard lock(mutex_);
  Entry& entry = recent_[started_++ % kRecent];
  entry.call = call;
  entry.is_done = false;
  entry.call.dim = nullptr;  // may not outlive the call
  assign(entry.dim, call.dim->c_str());
  assign(entry.label, thread_label);
  return started_ - 1;
}

void CommLog::finish(uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (number + kRecent >= started_) recent_[number % kRecent].is_done = true;
}

CommCounter::Table CommLog::table() const {
  CommCounter::Table table;
  for (const auto& [key, count] : counts_) {
    table[{name_of(key.kind), count->dim, count->label}] = *count;
  }
  return table;
}

std::string CommLog::recent_calls() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (uint64_t i = started_ - std::min<uint64_t>(started_, kRecent); i < started_; ++i) {
    const Entry& entry = recent_[i % kRecent];
    text += c10::str(text.empty() ? "" : "\n", "  call ", i + 1, ": ", name_of(entry.call.kind),
                     " on '", entry.dim.data(), "', ", entry.call.bytes, " bytes");
    if (entry.call.dtype != c10::ScalarType::Undefined) {
      text += c10::str(" of ", c10::toString(entry.call.dtype));
    }
    if (entry.label[0] != '\0') text += c10::str(", for ", entry.label.data());
    text += entry.is_done ? ", done" : ", waiting";
  }
  return text;
}

void CommLog::print_recent_calls_once(const std::string& communicator) {
  if (is_printed_) return;
  is_printed_ = true;
  log_line(LogLevel::Error, c10::str("timed out on '", communicator, "'; this rank's last calls:\n",
                                     recent_calls()));
}

}  // namespace shard
