// SPDX-License-Identifier: Apache-2.0
#include <shard/outermost.h>

#include <utility>

#include "dispatch/level_scope.h"

namespace shard {
namespace {

thread_local const OpCall* outermost = nullptr;

bool is_level_of(const OpCall& outer, const OpCall& call) {
  return outer.name() == call.name() && outer.tensors().size() == call.tensors().size();
}

}  // namespace

const OpCall& outermost_call(const OpCall& call) {
  return outermost && is_level_of(*outermost, call) ? *outermost : call;
}

bool sees_global_sizes(const DeviceMesh& mesh) {
  return mesh.root().ndim() == 1 || mesh.root_dims().front() == 0;
}

bool has_empty_rows(const at::Tensor& part, int64_t dim) {
  for (int64_t d = 0; d < part.dim(); ++d) {
    if (d != dim && part.size(d) == 0) return true;
  }
  return false;
}

detail::LevelScope::LevelScope(const OpCall& call)
    : before_(std::exchange(outermost, &outermost_call(call))) {}
detail::LevelScope::~LevelScope() { outermost = before_; }

bool detail::is_inner_level() { return outermost != nullptr; }

}  // namespace shard
