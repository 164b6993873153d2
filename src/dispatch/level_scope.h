// SPDX-License-Identifier: Apache-2.0
// Around the levels below a call: NOTE [Calls of inner levels].
#pragma once

#include <shard/rule.h>

namespace shard::detail {

class LevelScope {
 public:
  explicit LevelScope(const OpCall& call);
  ~LevelScope();
  LevelScope(const LevelScope&) = delete;
  LevelScope& operator=(const LevelScope&) = delete;

 private:
  const OpCall* before_;
};

/// Whether this thread is inside such a scope.
bool is_inner_level();

}  // namespace shard::detail
