// SPDX-License-Identifier: Apache-2.0
// The side tables of registration: rules by op name, and what is listed in docs and `shard ops`.
// Function patches themselves live in LibTorch's dispatcher.
#pragma once

#include <shard/patch.h>
#include <shard/rule.h>

#include <cstdint>
#include <string>

namespace shard {

struct RuleEntry {
  Rule rule;
  bool reads_sizes = false;
  bool remembers_input = false;
  bool needs_values = false;
  bool decomposes = false;  ///< and so has no rule
};

const RuleEntry* find_rule(const std::string& op_name);
/// Changes with every registration; caches of OpInfo are dropped then.
uint64_t registry_generation();

}  // namespace shard
