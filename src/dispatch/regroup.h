// SPDX-License-Identifier: Apache-2.0
// Tensors whose levels are grouped differently: NOTE [Regrouping] in regroup.cpp.
#pragma once

#include <ATen/core/stack.h>

namespace shard {

struct OpInfo;

/// Brings the tensors of a call to the same levels, differentiably. Does nothing when they are.
void regroup(const OpInfo& info, torch::jit::Stack* stack);

}  // namespace shard
