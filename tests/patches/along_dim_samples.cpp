// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

Sample of(const std::string& name, int64_t dim,
          const std::function<at::Tensor(const at::Tensor&)>& f) {
  return {name, {sharded(torch::randn({2, 8, 6}, at::kDouble), dim)}, [f](const Tensors& t) {
            return f(t[0]);
          }};
}

std::vector<Sample> cases() {
  torch::manual_seed(81);
  return {
      of("logcumsumexp", 1, [](const at::Tensor& t) { return t.logcumsumexp(1); }),
  };
}
SHARD_SAMPLES(AlongDim, with_traffic(cases(), {{"logcumsumexp", 3}}));

/// Any op of the family along any dim.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 9);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t along = r.integer(0, last);
  const Input input = sharded(r.tensor(sizes), r.integer(0, last));
  const Function function = [=](const Tensors& t) { return t[0].logcumsumexp(along); };
  Check check;
  if (along == input.shard_dim) check.traffic = 3;
  if (input.whole.numel() == sizes[static_cast<size_t>(along)]) {
    check.holds_whole = "there is no other dim to cut";
  }
  return {"random", {input}, function, check};
}
SHARD_RANDOM_SAMPLES(RandomAlongDim, random_sample);

}  // namespace
}  // namespace shard::testing
