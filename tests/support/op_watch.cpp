// SPDX-License-Identifier: Apache-2.0
#include "support/op_watch.h"

#include <ATen/record_function.h>

namespace shard::testing {
namespace {
thread_local std::vector<OpRecord>* seen = nullptr;
}  // namespace

const c10::IValue* OpRecord::argument(const std::string& name) const {
  const auto index = schema.argumentIndexWithName(name);
  if (!index || static_cast<size_t>(*index) >= arguments.size()) return nullptr;
  return &arguments[static_cast<size_t>(*index)];
}

std::vector<OpRecord> calls_of(const std::function<void()>& body) {
  std::vector<OpRecord> calls;
  seen = &calls;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
            if (const auto schema = call.operator_schema()) {
              const auto inputs = call.inputs();
              seen->push_back({*schema, std::vector<c10::IValue>(inputs.begin(), inputs.end())});
            }
            return nullptr;
          })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  body();
  at::removeCallback(handle);
  seen = nullptr;
  return calls;
}

}  // namespace shard::testing
