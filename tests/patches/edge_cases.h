// SPDX-License-Identifier: Apache-2.0
// What the files of edge cases share.
#pragma once

#include <support/samples.h>
#include <torch/types.h>

namespace shard::testing::edge_cases {

using Tensors = std::vector<at::Tensor>;
using Unary = std::function<at::Tensor(const at::Tensor&)>;
using Sizes = std::vector<int64_t>;

inline at::Tensor d(const Sizes& sizes) { return torch::randn(sizes, at::kDouble); }

/// `f` of one tensor, cut along `dim`.
inline Sample of(const std::string& name, const at::Tensor& x, int64_t dim, const Unary& f,
                 const Check& check = {}) {
  return {name, {sharded(x, dim)}, [f](const Tensors& t) { return f(t[0]); }, check};
}

}  // namespace shard::testing::edge_cases
