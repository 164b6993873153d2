// SPDX-License-Identifier: Apache-2.0
// The dispatch level: ask the op's rule, move the inputs, run the op on the local tensors, wrap.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace shard {

/// The boxed kernel at kDispatchKey for every op that has no typed kernel of its own there.
void dispatch_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack);

}  // namespace shard
