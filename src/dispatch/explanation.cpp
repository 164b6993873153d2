// SPDX-License-Identifier: Apache-2.0
#include <shard/log.h>
#include <shard/patch.h>

#include <exception>
#include <sstream>

namespace shard::detail {
namespace {

/// Calls inside calls (of patches, of the levels of a tensor on an n-d mesh) are indented.
thread_local int depth = 0;

std::string sizes_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

}  // namespace

Explanation::Explanation(std::string op, const char* by)
    : op_(std::move(op)), by_(by), exceptions_(std::uncaught_exceptions()) {
  ++depth;
}

Explanation::~Explanation() {
  --depth;
  if (log_rank() > 0) return;
  const std::string indent(static_cast<size_t>(2 * depth), ' ');
  const bool failed = std::uncaught_exceptions() > exceptions_;
  const auto calls = counter_.calls();
  std::ostringstream text;
  text << "[explain] " << indent << op_ << " by " << by_ << ": " << inputs_ << " -> "
       << (failed ? "an error" : outputs_);
  if (calls > 0) {
    text << "; " << calls << (calls == 1 ? " communication, " : " communications, ")
         << counter_.bytes() << " bytes from this rank";
  }
  log_line(LogLevel::Info, text.str() + notes_);
}

void Explanation::describe(std::string& text, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (!text.empty()) text += ", ";
  if (!is_shard_tensor(tensor)) {
    text += "plain " + sizes_of(tensor);
    return;
  }
  std::ostringstream placements;
  placements << ShardTensor(tensor).placements();
  text += placements.str() + " " + sizes_of(tensor);
}

}  // namespace shard::detail
