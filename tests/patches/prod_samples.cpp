// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<Sample> samples() {
  torch::manual_seed(92);
  const auto x = [] { return torch::randn({2, 8, 3}, at::kDouble); };
  at::Tensor with_zero = x();
  with_zero[1][5][0] = 0;
  return {
      {"of_everything", {sharded(x(), 1)}, [](const Tensors& t) { return t[0].prod(); }},
      {"over_the_sharded_dim", {sharded(x(), 1)}, [](const Tensors& t) { return t[0].prod(1); }},
      {"over_another_dim", {sharded(x(), 1)}, [](const Tensors& t) { return t[0].prod(2, true); }},
      {"of_a_zero", {sharded(with_zero, 1)}, [](const Tensors& t) { return t[0].prod(1); }},
      {"of_integers",
       {constant(torch::randint(1, 4, {2, 8}), 1)},
       [](const Tensors& t) { return t[0].prod(1); }},
  };
}
SHARD_SAMPLES(Prod, samples());

/// Over any dim.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 6);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t over = r.integer(0, last);
  const bool keeps = r.coin();
  return {"random", {sharded(r.tensor(sizes) + 0.5, r.integer(0, last))}, [=](const Tensors& t) {
            return t[0].prod(over, keeps);
          }};
}
SHARD_RANDOM_SAMPLES(RandomProd, random_sample);

}  // namespace
}  // namespace shard::testing
