// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

const Check kOnAMesh{.gradients = false, .double_backward = false, .grid = Check::Grid::None};

Sample of(const std::string& name, int64_t dim, int64_t size, double traffic) {
  Check check = kOnAMesh;
  check.traffic = traffic;
  const at::Tensor whole = torch::randn({9, 4, 3}, at::kDouble).relu();
  return {name,
          {sharded(whole, dim)},
          [size](const Tensors& t) { return at::nonzero_static(t[0], size, -1); },
          check};
}

std::vector<Sample> samples() {
  torch::manual_seed(380);
  return {of("fewer_than_there_are", 0, 7, 8), of("more_than_there_are", 0, 100, 64),
          of("none", 0, 0, 2), of("of_another_cut_dim", 1, 20, 16),
          of("of_the_last_dim", 2, 30, 16)};
}
SHARD_SAMPLES(NonzeroStatic, with_costs(samples(), 1000, "the result is whole by definition"));

Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 3), 1, 6);
  const int64_t size = r.integer(0, 30);
  Check check = kOnAMesh;
  check.traffic = 1000;
  check.holds_whole = "the result is whole by definition";
  return {"random",
          {sharded(r.tensor(sizes).relu(), r.integer(0, static_cast<int64_t>(sizes.size()) - 1))},
          [size](const Tensors& t) { return at::nonzero_static(t[0], size, -7); },
          check};
}
SHARD_RANDOM_SAMPLES(RandomNonzeroStatic, random_sample);

}  // namespace
}  // namespace shard::testing
