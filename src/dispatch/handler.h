// SPDX-License-Identifier: Apache-2.0
// A handler that a program registered: NOTE [Handlers] in handlers.cpp.
#pragma once

#include <ATen/core/function_schema.h>
#include <shard/patch.h>

#include <memory>
#include <string>

namespace shard {

struct Handler {
  std::string op;  ///< qualified, with the overload
  HandlerLevel level = HandlerLevel::Function;
  c10::KernelFunction kernel{};                            ///< unless it is a rule
  Rule rule{};                                             ///< dispatch level only
  std::shared_ptr<const c10::FunctionSchema> signature{};  ///< of a handler found by name only
  bool is_checked = false;                                 ///< the op existed at the registration
};

using detail::HandlerRef;

}  // namespace shard
