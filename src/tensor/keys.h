// SPDX-License-Identifier: Apache-2.0
// The two dispatch keys that every ShardTensor carries. LibTorch reserves both for out-of-tree
// wrapper tensors and registers nothing at them (dispatch/self_test.cpp checks that when the
// library is loaded).
//
// NOTE [Two levels]
// kFunctionKey lies above autocast and autograd: it sees whole ops as the model wrote them.
// kDispatchKey lies below autograd and above every backend: it sees what autograd's formulas leave.
// Between the two run LibTorch's own autograd formulas, unchanged.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace shard {

inline constexpr auto kFunctionKey = c10::DispatchKey::DeferredInit;
inline constexpr auto kDispatchKey = c10::DispatchKey::Fake;

/// Keys that remain below the function level.
inline c10::DispatchKeySet below_function_level(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kFunctionKey);
}

}  // namespace shard
