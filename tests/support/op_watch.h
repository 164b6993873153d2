// SPDX-License-Identifier: Apache-2.0
// Which ops a function calls, and with which arguments.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace shard::testing {

struct OpRecord {
  c10::FunctionSchema schema;
  std::vector<c10::IValue> arguments;
  const c10::IValue* argument(const std::string& name) const;  ///< null: the op has none
};

/// The ops that `body` calls on this thread, those called by other ops included.
std::vector<OpRecord> calls_of(const std::function<void()>& body);

}  // namespace shard::testing
