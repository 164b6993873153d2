// SPDX-License-Identifier: Apache-2.0
// scaled_dot_product_attention as a function under test.
#pragma once

#include <ATen/ops/scaled_dot_product_attention.h>
#include <shard/testing.h>

#include <optional>
#include <vector>

namespace shard::testing {

struct AttentionOptions {
  bool is_causal = false;
  std::optional<double> scale = std::nullopt;
  bool has_grouped_heads = false;
};

/// Of queries, keys, values and, when there is a fourth tensor, a mask.
inline Function attention(const AttentionOptions& options = {}) {
  return [=](const std::vector<at::Tensor>& t) {
    const auto mask = t.size() > 3 ? std::optional<at::Tensor>(t[3]) : std::nullopt;
    return at::scaled_dot_product_attention(t[0], t[1], t[2], mask, 0, options.is_causal,
                                            options.scale, options.has_grouped_heads);
  };
}

}  // namespace shard::testing
