// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor d(const std::vector<int64_t>& sizes) { return torch::randn(sizes, at::kDouble); }
Tensor with_nans(const Tensor& x) {
  return at::where(x > 0.8, std::numeric_limits<double>::quiet_NaN(), x);
}

std::vector<Sample> samples() {
  torch::manual_seed(420);
  const auto median = [](const Tensors& t) { return t[0].median().square(); };
  const auto nanmedian = [](const Tensors& t) { return t[0].nanmedian().square(); };
  return {
      {"median", {sharded(d({9, 5}), 0)}, median},
      {"median_of_an_even_number", {sharded(d({9, 4}), 1)}, median},
      {"median_of_equal_values",
       {sharded(torch::randint(0, 3, {9, 4}).to(at::kDouble), 0)},
       median},
      {"median_of_ordered_values", {sharded(torch::arange(40, at::kDouble), 0)}, median},
      {"median_of_infinities",
       {sharded(d({40}).square() / torch::zeros({40}, at::kDouble), 0)},
       [](const Tensors& t) { return t[0].median().isinf().to(at::kDouble); },
       Check{.gradients = false}},
      {"nanmedian", {sharded(d({9, 5}), 0)}, nanmedian},
      {"nanmedian_among_nans",
       {sharded(with_nans(d({9, 5})), 0)},
       [](const Tensors& t) { return t[0].nanmedian(); },
       Check{.gradients = false}},
      {"median_among_nans",
       {sharded(with_nans(d({9, 5})), 0)},
       [](const Tensors& t) { return t[0].median().isnan().to(at::kDouble); },
       Check{.gradients = false}},
      {"nanmedian_of_nans",
       {sharded(d({9, 5}) * std::numeric_limits<double>::quiet_NaN(), 1)},
       [](const Tensors& t) { return t[0].nanmedian().isnan().to(at::kDouble); },
       Check{.gradients = false}},
      {"median_of_integers",
       {constant(torch::randint(-50, 50, {9, 5}), 0)},
       [](const Tensors& t) { return t[0].median().to(at::kDouble); },
       Check{.gradients = false, .both_precisions = false}},
  };
}
// What is sent does not grow with the tensor.
SHARD_SAMPLES(Median, with_costs(samples(), 0.5));

Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 3), 1, 7);
  const bool is_coarse = r.integer(0, 1) == 1;
  const Tensor x = r.tensor(sizes);
  return {
      "random",
      {sharded(is_coarse ? x.round() : x, r.integer(0, static_cast<int64_t>(sizes.size()) - 1))},
      [](const Tensors& t) { return t[0].median().square(); },
      Check{.traffic = 100, .holds_whole = "they are a few values"}};
}
SHARD_RANDOM_SAMPLES(RandomMedian, random_sample);

}  // namespace
}  // namespace shard::testing
