// SPDX-License-Identifier: Apache-2.0
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "patches/extrema_inputs.h"

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<Sample> samples() {
  torch::manual_seed(4);
  return {
      {"argmax_over_the_sharded_dim",
       {constant(x(), 1)},
       [](const Tensors& t) { return t[0].argmax(1); }},
      {"argmin_over_the_sharded_dim_keeping_it",
       {constant(x(), 1)},
       [](const Tensors& t) { return t[0].argmin(1, true); }},
      {"argmax_with_ties_is_the_first",
       {constant(with_ties(), 1)},
       [](const Tensors& t) { return t[0].argmax(1); }},
      {"argmax_of_everything", {constant(x(), 1)}, [](const Tensors& t) { return t[0].argmax(); }},
      {"argmax_of_everything_with_ties",
       {constant(with_ties(), 1)},
       [](const Tensors& t) { return t[0].argmax(); }},
      {"argmax_of_everything_sharded_on_the_last_dim",
       {constant(torch::randint(0, 3, {3, 2, 8}).to(at::kFloat), 2)},
       [](const Tensors& t) { return t[0].argmax(); }},
      {"argmin_of_everything_keeping_dims",
       {constant(x(), 1)},
       [](const Tensors& t) { return t[0].argmin(c10::nullopt, true); }},
      {"argmax_over_an_unsharded_dim",
       {constant(x(), 1)},
       [](const Tensors& t) { return t[0].argmax(2); }},
      {"argmax_with_a_nan",
       {constant(with_nan(), 1)},
       [](const Tensors& t) { return t[0].argmax(1); }},
      {"max_indices_over_the_sharded_dim",
       {constant(with_ties(), 1)},
       [](const Tensors& t) { return std::get<1>(t[0].max(1)); }},
      {"min_indices_over_the_sharded_dim",
       {constant(with_ties(), 1)},
       [](const Tensors& t) { return std::get<1>(t[0].min(1, true)); }},
      {"argmax_of_integers",
       {constant(torch::randint(-9, 9, {2, 8}), 1)},
       [](const Tensors& t) { return t[0].argmax(1); }},
  };
}

SHARD_SAMPLES(ExtremumIndices, samples());

/// Where the extrema of few distinct values are.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 8);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t over = r.integer(0, last);
  const int64_t kind = r.integer(0, 3);
  const bool keeps = r.coin();
  const at::Tensor values = r.tensor(sizes).mul(2).round();
  return {"random", {constant(values, r.integer(0, last))}, [=](const Tensors& t) {
            if (kind == 0) return t[0].argmax(over, keeps);
            if (kind == 1) return t[0].argmin();
            if (kind == 2) return std::get<1>(t[0].max(over, keeps));
            return std::get<1>(t[0].min(over, keeps));
          }};
}
SHARD_RANDOM_SAMPLES(RandomExtremaIndices, random_sample);

TEST(ExtremumIndices, AreGlobalOnEveryRank) {
  const auto x = torch::tensor({3., 8., 10., 5.}).expand({4, 4}).contiguous();
  run_ranks(2, [&](World& world) {
    const auto t = scatter_tensor(x, 0, world.mesh(), {Shard(1)});
    const auto [values, indices] = t.max(1);
    EXPECT_TRUE(ShardTensor(indices).full().eq(2).all().item<bool>());
    EXPECT_TRUE(ShardTensor(values).full().eq(10).all().item<bool>());
  });
}

}  // namespace
}  // namespace shard::testing
