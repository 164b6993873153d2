// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor d(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); }
Input numbers(std::vector<int64_t> sizes, int64_t dim = -1) {
  return constant(torch::randint(0, 7, sizes), dim);
}

/// LibTorch differentiates its own formula once.
Check once(double traffic = 0) {
  Check check{.traffic = traffic};
  check.double_backward = false;
  return check;
}

std::vector<Sample> samples() {
  torch::manual_seed(220);
  const Function rows = [](const Tensors& t) { return at::embedding(t[0], t[1]).square(); };
  return {
      {"cut_tokens", {weight(d({7, 3})), numbers({2, 16}, 1)}, rows, once()},
      {"cut_batch", {weight(d({7, 1})), numbers({5, 3}, 0)}, rows, once()},
      {"cut_table", {sharded(d({7, 3}), 0), numbers({2, 5})}, rows, once(2)},
      {"cut_table_and_tokens", {sharded(d({7, 3}), 0), numbers({23}, 0)}, rows, once(6)},
      {"cut_columns", {sharded(d({4, 7}).t(), 1), numbers({2, 5})}, rows, once()},
      {"padding",
       {weight(d({7, 3})), numbers({2, 16}, 1)},
       [](const Tensors& t) { return at::embedding(t[0], t[1], 3).square(); },
       once()},
  };
}
SHARD_SAMPLES(Embedding, samples());

}  // namespace
}  // namespace shard::testing
