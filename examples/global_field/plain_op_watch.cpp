// SPDX-License-Identifier: Apache-2.0
#include "plain_op_watch.h"

#include <shard/error.h>

#include <algorithm>
#include <string>

namespace global_field {
namespace {

struct Seen {
  int64_t ops = 0;
  std::string sharded_op;  // first op that met a ShardTensor
};
thread_local Seen seen;

bool is_sharded(const at::Tensor& tensor) {
  const c10::DispatchKeySet shard_keys({c10::DispatchKey::Fake, c10::DispatchKey::DeferredInit});
  return tensor.defined() && tensor.key_set().has_any(shard_keys);
}

bool holds_sharded(const c10::IValue& value) {
  if (value.isTensor()) return is_sharded(value.toTensor());
  if (!value.isList()) return false;
  const auto items = value.toListRef();
  return std::any_of(items.begin(), items.end(), holds_sharded);
}

std::unique_ptr<at::ObserverContext> inspect_inputs(const at::RecordFunction& op) {
  ++seen.ops;
  const auto inputs = op.inputs();
  if (std::any_of(inputs.begin(), inputs.end(), holds_sharded)) seen.sharded_op = op.name();
  return nullptr;
}

void inspect_outputs(const at::RecordFunction& op, at::ObserverContext*) {
  const auto& outputs = op.outputs();
  if (std::any_of(outputs.begin(), outputs.end(), holds_sharded)) seen.sharded_op = op.name();
}

}  // namespace

PlainOpWatch::PlainOpWatch() {
  seen = {};
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(inspect_inputs, inspect_outputs)
                                             .needsInputs(true)
                                             .needsOutputs(true));
}

PlainOpWatch::~PlainOpWatch() { at::removeCallback(callback_); }

void PlainOpWatch::require_plain() const {
  shard::check<shard::Error>(seen.ops > 0, "verify",
                             "the plain run called no op. Report this as a bug.");
  shard::check<shard::Error>(seen.sharded_op.empty(), "verify",
                             "the plain run is not plain: ", seen.sharded_op,
                             " met a ShardTensor. Report this as a bug.");
}

}  // namespace global_field
