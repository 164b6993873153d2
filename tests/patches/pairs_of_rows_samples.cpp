// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/pdist.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// LibTorch's gradient has no gradient.
Sample distances(const std::string& name, const Tensor& x, int64_t dim, double p) {
  Check check{.traffic = 8, .holds_whole = "every row is compared with all"};
  check.double_backward = false;
  return {name,
          {sharded(x, dim)},
          [=](const Tensors& t) { return at::pdist(t[0], p).square(); },
          check};
}

std::vector<Sample> samples() {
  torch::manual_seed(270);
  const auto rows = [](std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); };
  Tensor equal = rows({9, 3});
  equal[4] = equal[2];
  return {
      distances("euclidean", rows({9, 3}), 0, 2),
      distances("of_equal_rows", equal, 0, 2),
      distances("sums", rows({9, 3}), 0, 1),
      distances("cubes", rows({9, 4}), 0, 3),
      distances("largest", rows({9, 3}), 0, std::numeric_limits<double>::infinity()),
      distances("cut_columns", rows({7, 5}), 1, 2),
      distances("two_rows", rows({2, 3}), 0, 2),
      distances("one_row", rows({1, 3}), 0, 2),
      distances("non_contiguous", rows({3, 9}).t(), 0, 2),
  };
}
SHARD_SAMPLES(PairsOfRows, samples());

}  // namespace
}  // namespace shard::testing
