// SPDX-License-Identifier: Apache-2.0
// Ops that work along one dim and treat all others index by index. Cut along that dim, the shard
// moves to another one first: every rank then has whole lines.
#include <shard/patch.h>

namespace shard {

SHARD_PATCH(along_dim) {
  const auto add = [&](std::initializer_list<const char*> ops, const Rule& rule) {
    for (const char* op : ops) {
      patch.rule(std::string("aten::") + op, rule)
          .shards("any dim")
          .notes("along the dim itself: one all-to-all to another dim")
          .needs_values();
    }
  };
  add({"_logcumsumexp", "logcumsumexp"}, along_dims(1));
  add({"glu_backward"}, along_dims(2));
}

}  // namespace shard
