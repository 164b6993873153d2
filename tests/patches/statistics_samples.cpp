// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;
constexpr auto none = std::nullopt;

/// In double precision: rounding is not what the gradient penalties should differ by.
at::Tensor x() { return torch::randn({2, 3, 8, 2}, at::kDouble); }
at::Tensor first(const std::tuple<at::Tensor, at::Tensor>& pair) {
  return std::get<0>(pair) + 2 * std::get<1>(pair);
}

std::vector<Sample> cases() {
  torch::manual_seed(2);
  return {
      {"var_of_everything", {sharded(x(), 2)}, [](const Tensors& t) { return t[0].var(); }},
      {"biased_var_of_everything",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].var(false); }},
      {"var_over_the_sharded_dim",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].var({2}); }},
      {"var_over_the_sharded_dim_keeping_it",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].var({-2}, true, true); }},
      {"var_over_the_sharded_and_another_dim",
       {sharded(x(), 2)},
       [](const Tensors& t) {
         return t[0].var(at::IntArrayRef({0, 2}), false);
       }},
      {"var_over_an_unsharded_dim",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].var({1}); }},
      {"var_with_a_correction_of_two",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].var(at::IntArrayRef({2}), at::Scalar(2), false); }},
      {"std_of_everything", {sharded(x(), 2)}, [](const Tensors& t) { return t[0].std(); }},
      {"std_over_the_sharded_dim",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].std({2}); }},
      {"std_of_constant_rows_has_gradient_zero",
       {sharded(torch::full({2, 8}, 3.0), 1)},
       [](const Tensors& t) { return t[0].std({1}); },
       Check{.double_backward = false}},
      {"std_over_an_unsharded_dim",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].std(at::IntArrayRef({3}), 0); }},
      {"var_mean_over_the_sharded_dim",
       {sharded(x(), 2)},
       [](const Tensors& t) { return first(at::var_mean(t[0], {2})); }},
      {"var_mean_of_everything",
       {sharded(x(), 2)},
       [](const Tensors& t) { return first(at::var_mean(t[0])); }},
      {"std_mean_over_an_unsharded_dim",
       {sharded(x(), 2)},
       [](const Tensors& t) { return first(at::std_mean(t[0], {1}, at::Scalar(0), true)); }},
      {"var_in_single_precision",
       {sharded(x().to(at::kFloat), 2)},
       [](const Tensors& t) { return t[0].var(); }},
      {"var_of_a_mean_that_is_large",
       {sharded(x() + 1e4, 2)},
       [](const Tensors& t) { return t[0].var({2}); },
       Check{.tolerance = 1e-10}},
      {"var_of_a_single_element_is_nan",
       {constant(torch::randn({1, 1}), 1)},
       [](const Tensors& t) { return t[0].var().isnan(); }},
      {"biased_var_of_a_single_element_is_zero",
       {sharded(torch::randn({1, 1}), 1)},
       [](const Tensors& t) { return t[0].var(false); }},
      {"std_of_a_pending_sum",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].sum(2).std({1}); }},
  };
}

SHARD_SAMPLES(Statistics, cases());

/// Variances and standard deviations over any dim.
Sample random_sample(Random& r) {
  auto sizes = r.sizes(r.integer(1, 4), 1, 7);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t over = r.integer(0, last);
  sizes[static_cast<size_t>(over)] = r.integer(2, 9);
  const int64_t correction = r.integer(0, 1);
  const int64_t kind = r.integer(0, 2);
  const bool keeps = r.coin();
  return {"random", {sharded(r.tensor(sizes), r.integer(0, last))}, [=](const Tensors& t) {
            if (kind == 0) return t[0].var(at::IntArrayRef{over}, correction, keeps);
            if (kind == 1) return (t[0] + 3).std(at::IntArrayRef{over}, correction, keeps);
            const auto [deviation, mean] = at::std_mean(t[0], at::IntArrayRef{over}, correction);
            return deviation * mean;
          }};
}
SHARD_RANDOM_SAMPLES(RandomStatistics, random_sample);

}  // namespace
}  // namespace shard::testing
