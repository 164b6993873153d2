// SPDX-License-Identifier: Apache-2.0
// What samples of extrema and of their indices are taken of.
#pragma once

#include <torch/types.h>

#include <limits>

namespace shard::testing {

inline at::Tensor x() { return torch::randn({2, 8, 3}); }
/// Few distinct values: many ties, also between ranks.
inline at::Tensor with_ties() { return torch::randint(0, 3, {2, 8, 3}).to(at::kFloat); }
inline at::Tensor with_nan() {
  auto t = torch::randn({2, 8, 3});
  t[1][6][2] = std::numeric_limits<float>::quiet_NaN();
  return t;
}

}  // namespace shard::testing
