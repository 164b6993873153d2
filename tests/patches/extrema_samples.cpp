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

std::vector<Sample> value_cases() {
  torch::manual_seed(3);
  return {
      {"amax_over_the_sharded_dim",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].amax({1}); }},
      {"amax_over_the_sharded_dim_keeping_it",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].amax({1}, true); }},
      {"amax_of_everything", {sharded(x(), 1)}, [](const Tensors& t) { return t[0].amax(); }},
      {"amax_over_an_unsharded_dim",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].amax({2}); }},
      {"amax_over_the_dim_before_the_shard",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].amax({0}); }},
      {"amin_over_two_dims",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         return t[0].amin({0, 1});
       }},
      {"amax_shares_the_gradient_of_ties",
       {sharded(with_ties(), 1)},
       [](const Tensors& t) { return t[0].amax({1}); }},
      {"amin_of_integers",
       {constant(torch::randint(-9, 9, {2, 8, 3}), 1)},
       [](const Tensors& t) { return t[0].amin({1}); }},
      {"aminmax_over_the_sharded_dim",  // LibTorch has no derivative of it
       {constant(x(), 1)},
       [](const Tensors& t) {
         const auto [low, high] = at::aminmax(t[0], 1);
         return low + 2 * high;
       }},
      {"aminmax_of_everything",
       {constant(x(), 1)},
       [](const Tensors& t) {
         const auto [low, high] = at::aminmax(t[0]);
         return low + 2 * high;
       }},
      {"max_of_everything", {sharded(x(), 1)}, [](const Tensors& t) { return t[0].max(); }},
      {"min_of_everything_with_ties",
       {sharded(with_ties(), 1)},
       [](const Tensors& t) { return t[0].min(); }},
      {"max_values_over_the_sharded_dim",
       {sharded(x(), 1)},
       [](const Tensors& t) { return std::get<0>(t[0].max(1)); }},
      {"max_values_with_ties_go_to_the_first",
       {sharded(with_ties(), 1)},
       [](const Tensors& t) { return std::get<0>(t[0].max(1)); }},
      {"min_values_over_an_unsharded_dim",
       {sharded(x(), 1)},
       [](const Tensors& t) { return std::get<0>(t[0].min(2, true)); }},
      {"min_values_over_the_sharded_dim_keeping_it",
       {sharded(x(), 1)},
       [](const Tensors& t) { return std::get<0>(t[0].min(-2, true)); }},
      {"amax_of_a_pending_sum",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].sum(1).amax(1); }},
      {"amax_with_a_nan",
       {constant(with_nan(), 1)},
       [](const Tensors& t) { return t[0].amax({1}).isnan(); }},
      {"max_of_two_tensors",
       {sharded(x(), 1), sharded(x(), 1)},
       [](const Tensors& t) { return at::max(t[0], t[1]); }},
      {"amax_in_double_precision",
       {sharded(x().to(at::kDouble), 1)},
       [](const Tensors& t) { return t[0].amax({1}); }},
  };
}

SHARD_SAMPLES(Extrema, value_cases());

/// Largest and smallest values over any dims.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 8);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t over = r.integer(0, last);
  const int64_t kind = r.integer(0, 4);
  const bool keeps = r.coin();
  return {"random", {sharded(r.tensor(sizes), r.integer(0, last))}, [=](const Tensors& t) {
            if (kind == 0) return t[0].amax({over}, keeps);
            if (kind == 1) return t[0].amin(at::IntArrayRef(), keeps);
            if (kind == 2) return std::get<0>(t[0].max(over, keeps));
            if (kind == 3) return t[0].min();
            return std::get<0>(t[0].min(over, keeps));
          }};
}
SHARD_RANDOM_SAMPLES(RandomExtrema, random_sample);

}  // namespace
}  // namespace shard::testing
