// SPDX-License-Identifier: Apache-2.0
// The gradients of attention made of differentiable ops, for a graph of the backward: the keys are
// gathered and the scores of the local queries held.
#pragma once

#include <shard/ring_attention.h>

#include "exchange/attention_block.h"

namespace shard {

/// Of ring_attention. `mask` may be undefined.
struct Inputs {
  at::Tensor q, k, v, mask;
};

/// `lse` as in attend_backward. The mask's gradient, when wanted, has the mask's sizes.
BlockGradients differentiable_gradients(const at::Tensor& gradient, const Inputs& in,
                                        const at::Tensor& lse, const AttentionPlan& plan,
                                        bool wants_mask);

}  // namespace shard
