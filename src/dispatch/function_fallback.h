// SPDX-License-Identifier: Apache-2.0
// The function level: see function_fallback.cpp.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace shard {

/// The boxed kernel at kFunctionKey for every op that has no function patch.
void function_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack);
/// The same without looking for a handler.
void run_without_patch(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack);

}  // namespace shard
