// SPDX-License-Identifier: Apache-2.0
// Calls that write lists of tensors of which some are plain and some sharded: an optimizer over all
// parameters of a model, say, of which only a position embedding is cut.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "dispatch/op_info.h"

namespace shard {

/// Makes one call for the plain ones and one for the sharded ones, in this order, and takes the
/// arguments (the last ones of `stack`, from `begin`) off the stack. Every list as long as the
/// written ones is divided with them. False, and nothing done, where the op has results, writes
/// something else than lists, or writes plain and sharded tensors at one place of the lists.
bool call_for_each_kind(const c10::OperatorHandle& op, const OpInfo& info, torch::jit::Stack* stack,
                        size_t begin);

}  // namespace shard
