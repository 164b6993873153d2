// SPDX-License-Identifier: Apache-2.0
// What the fallbacks need to know about an op, read from its schema once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <shard/rule.h>

#include <string>
#include <vector>

namespace shard {

struct OpInfo {
  std::string name;                    ///< "aten::add.Tensor"
  std::vector<bool> writes;            ///< per argument
  std::vector<int> returned_argument;  ///< per return: the written argument it is, or -1
  bool is_view = false;                ///< returns an alias it does not write
  bool is_mutating = false;
  bool changes_metadata = false;   ///< inplace_view: unsqueeze_, t_, ...
  bool has_counted_sizes = false;  ///< values may decide the sizes of the result
  bool is_composite = false;       ///< runs LibTorch's kernel, which calls other ops
  bool remembers_input = false;    ///< see NOTE [Remembered inputs]
  bool needs_values = false;       ///< pending sums are reduced above autograd
  bool reads_sizes = false;        ///< its rule also runs when all inputs are replicated
  Rule rule;                       ///< empty: none
};

/// Cached; valid until the next registration.
const OpInfo& op_info(const c10::OperatorHandle& op);

}  // namespace shard
