// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor d(const std::vector<int64_t>& sizes) { return torch::randn(sizes, at::kDouble); }

Sample of(const std::string& name, const at::Tensor& x, int64_t dim, int64_t along) {
  return {name, {sharded(x, dim)}, [along](const Tensors& t) { return at::glu(t[0], along); }};
}

std::vector<Sample> samples() {
  torch::manual_seed(341);
  return {
      of("along_the_cut_dim", d({2, 8, 6}), 1, 1),
      of("of_a_line", d({12}), 0, 0),
      of("along_another_dim", d({2, 7, 6}), 1, -1),
      of("transposed", d({6, 8}).t(), 0, 0),
      of("two_rows", d({2, 1, 3}), 0, 0),
      {"of_a_pending_sum",
       {sharded(d({8, 6}), 0)},
       [](const Tensors& t) { return at::glu(t[0].sum(0), 0); }},
  };
}
SHARD_SAMPLES(Glu, with_costs(samples(), 3));

}  // namespace
}  // namespace shard::testing
