// SPDX-License-Identifier: Apache-2.0
// Ops that nothing covers, on gathered tensors: NOTE [Gather fallback] in gather_fallback.cpp.
#pragma once

#include <shard/rule.h>
#include <shard/spec.h>

#include <optional>
#include <string>

namespace shard {

/// Says once for each op of the process that it gathers.
void warn_that_it_gathers(const std::string& op);

/// How a result of this global shape is cut after the op: like `input` where the size fits.
Layout layout_after_gather(const std::optional<Layout>& input, c10::IntArrayRef sizes);

}  // namespace shard
