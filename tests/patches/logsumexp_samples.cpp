// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<Sample> samples() {
  torch::manual_seed(91);
  const auto x = [] { return torch::randn({2, 8, 6}, at::kDouble); };
  return {
      {"over_the_sharded_dim",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].logsumexp(1); }},
      {"over_another_dim", {sharded(x(), 1)}, [](const Tensors& t) { return t[0].logsumexp(2); }},
      {"over_all_dims",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         return t[0].logsumexp(std::vector<int64_t>{0, 1, 2});
       }},
      {"of_large_values",
       {sharded(x() + 1e4, 1)},
       [](const Tensors& t) { return t[0].logsumexp(1, true) - 1e4; },
       {.both_precisions = false}},
  };
}
SHARD_SAMPLES(LogSumExp, samples());

/// Over any dim.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 7);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t over = r.integer(0, last);
  const bool keeps = r.coin();
  return {"random", {sharded(r.tensor(sizes) * 3, r.integer(0, last))}, [=](const Tensors& t) {
            return t[0].logsumexp(over, keeps);
          }};
}
SHARD_RANDOM_SAMPLES(RandomLogsumexp, random_sample);

}  // namespace
}  // namespace shard::testing
