// SPDX-License-Identifier: Apache-2.0
// From a typed kernel to a boxed one.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace shard {

using BoxedKernel = void (*)(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*);

/// For ops that return one tensor.
template <class... Args>
at::Tensor call_boxed(BoxedKernel kernel, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      const Args&... args) {
  torch::jit::Stack stack;
  torch::jit::push(stack, args...);
  kernel(op, keys, &stack);
  return std::move(stack.back()).toTensor();
}

}  // namespace shard
