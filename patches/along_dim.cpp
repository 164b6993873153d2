// SPDX-License-Identifier: Apache-2.0
// Ops that work along one dim and treat all others index by index. Cut along that dim, the shard
// moves to another one first: every rank then has whole lines.
#include <shard/patch.h>

namespace shard {

namespace {

/// The same for ops that take the dim away unless the argument after it, keepdim, is true.
Rule taking_dim(size_t dim_argument) {
  return [along = along_dims(dim_argument), dim_argument](const OpCall& call) {
    auto decision = along(call);
    const int64_t dim = call.dim(dim_argument, call.tensor(0).ndim());
    if (decision && !call.argument(dim_argument + 1).toBool()) {
      auto& output = decision->outputs[0];
      if (output.is_shard() && output.dim() > dim) output = output.moved_to(output.dim() - 1);
    }
    return decision;
  };
}

}  // namespace

SHARD_PATCH(along_dim) {
  const auto add = [&](std::initializer_list<const char*> ops, const Rule& rule) {
    for (const char* op : ops) {
      patch.rule(std::string("aten::") + op, rule)
          .shards("any dim")
          .notes("along the dim itself: one all-to-all to another dim")
          .needs_values();
    }
  };
  add({"_logcumsumexp", "logcumsumexp", "sort"}, along_dims(1));
  add({"sort.stable", "topk", "glu_backward"}, along_dims(2));
  add({"median.dim", "nanmedian.dim", "mode"}, taking_dim(1));
  add({"kthvalue"}, taking_dim(2));
}

}  // namespace shard
