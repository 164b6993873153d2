// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/launch.h>
#include <shard/tensor.h>
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
      of("sort", 1, [](const at::Tensor& t) { return std::get<0>(t.sort(1)).cumsum(1).square(); }),
      of("sort_indices", 1,
         [](const at::Tensor& t) { return std::get<1>(t.sort(1, /*descending=*/true)); }),
      of("argsort", 1, [](const at::Tensor& t) { return at::argsort(t, int64_t{1}, false); }),
      of("topk", 1, [](const at::Tensor& t) { return std::get<0>(t.topk(3, 1)).square(); }),
      of("topk_of_another_dim", 1, [](const at::Tensor& t) { return std::get<0>(t.topk(3, 2)); }),
      of("median", 1, [](const at::Tensor& t) { return std::get<0>(t.median(1)).square(); }),
      of("median_keepdim", 1, [](const at::Tensor& t) { return std::get<0>(t.median(1, true)); }),
      of("mode_of_integers", 1,
         [](const at::Tensor& t) { return std::get<0>((t * 2).round().to(at::kLong).mode(1)); }),
      of("kthvalue_of_another_dim", 2,
         [](const at::Tensor& t) { return std::get<0>(t.kthvalue(3, 1)).square(); }),
      of("kthvalue", 1, [](const at::Tensor& t) { return std::get<0>(t.kthvalue(3, 1)).square(); }),
  };
}
SHARD_SAMPLES(AlongDim, with_traffic(cases(), {{"logcumsumexp", 3},
                                               {"sort", 1.5},
                                               {"sort_indices", 0.75},
                                               {"argsort", 0.75},
                                               {"topk", 1.5},
                                               {"median", 1.5},
                                               {"median_keepdim", 1.5},
                                               {"mode_of_integers", 0.75},
                                               {"kthvalue", 1.5}}));

/// Any op of the family along any dim.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 9);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t along = r.integer(0, last);
  const int64_t kind = r.integer(0, 2);
  const Input input = sharded(r.tensor(sizes), r.integer(0, last));
  const Function function = [=](const Tensors& t) {
    if (kind == 0) return std::get<0>(t[0].sort(along)).square();
    if (kind == 1) return t[0].logcumsumexp(along);
    return std::get<0>(t[0].topk((t[0].size(along) + 1) / 2, along)).square();
  };
  Check check;
  if (along == input.shard_dim) check.traffic = 3;
  if (input.whole.numel() == sizes[static_cast<size_t>(along)]) {
    check.holds_whole = "there is no other dim to cut";
  }
  return {"random", {input}, function, check};
}
SHARD_RANDOM_SAMPLES(RandomAlongDim, random_sample);

TEST(AlongDim, TheShardMovesToAnotherDimInOneAllToAll) {
  run_ranks(2, [](World& world) {
    const auto t = scatter_tensor(torch::randn({8, 6}), 0, world.mesh(), {Shard(0)});
    const CommCounter counter;
    EXPECT_TRUE(ShardTensor(std::get<0>(t.sort(0))).spec().placement().is_shard(1));
    EXPECT_EQ(counter.calls("all_to_all_v"), 1) << counter.table();
    EXPECT_EQ(counter.calls(), 1) << counter.table();
  });
}

}  // namespace
}  // namespace shard::testing
