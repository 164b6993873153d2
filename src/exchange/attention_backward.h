// SPDX-License-Identifier: Apache-2.0
// The gradients of attention in one pass over the blocks of keys: NOTE [Ring attention].
#pragma once

#include "exchange/attention_graph.h"

namespace shard {

struct Wanted {
  bool keys = false;  ///< gradients of k or v
  bool mask = false;
};

/// `result`: of all blocks, its lse finite. Collective over the plan's mesh.
BlockGradients attention_gradients(const at::Tensor& gradient, const Inputs& in,
                                   const BlockResult& result, const AttentionPlan& plan,
                                   const Wanted& wanted);

}  // namespace shard
