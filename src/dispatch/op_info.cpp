// SPDX-License-Identifier: Apache-2.0
#include "dispatch/op_info.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <unordered_map>

#include "dispatch/registry.h"

namespace shard {
namespace {

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

/// The written argument that a return value is, by the alias set they share in the schema.
int written_argument(const c10::FunctionSchema& schema, const c10::Argument& returned) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    if (is_written(argument) &&
        argument.alias_info()->beforeSets() == returned.alias_info()->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

bool decomposes(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

OpInfo read(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  OpInfo info;
  info.name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  for (const auto& argument : schema.arguments()) {
    info.writes.push_back(is_written(argument));
    info.is_mutating |= info.writes.back();
  }
  for (const auto& returned : schema.returns()) {
    const bool aliases = returned.alias_info() != nullptr;
    const bool writes = aliases && returned.alias_info()->isWrite();
    info.returned_argument.push_back(writes ? written_argument(schema, returned) : -1);
    info.is_view |= aliases && !writes;
  }
  info.changes_metadata = op.hasTag(at::Tag::inplace_view);
  info.has_counted_sizes = op.hasTag(at::Tag::dynamic_output_shape);
  info.is_composite = decomposes(op);
  if (const auto* entry = find_rule(info.name)) {
    info.rule = entry->rule;
    info.reads_sizes = entry->reads_sizes;
    info.remembers_input = entry->remembers_input;
    info.needs_values = entry->needs_values;
    info.is_composite |= entry->decomposes;
  }
  return info;
}

}  // namespace

const OpInfo& op_info(const c10::OperatorHandle& op) {
  // Per thread, so that no lock is taken; keyed by the schema, which lives as long as the op.
  struct Cache {
    uint64_t generation = 0;
    std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OpInfo>> entries;
  };
  static thread_local Cache cache;
  if (const auto generation = registry_generation(); cache.generation != generation) {
    cache.entries.clear();
    cache.generation = generation;
  }
  auto& entry = cache.entries[&op.schema()];
  if (!entry) entry = std::make_unique<OpInfo>(read(op));
  return *entry;
}

}  // namespace shard
