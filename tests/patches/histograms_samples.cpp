// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

const Check kForward{.gradients = false, .double_backward = false};
const Check kSorted{.gradients = false, .double_backward = false, .traffic = 4};
const Check kInDouble{.gradients = false, .double_backward = false, .both_precisions = false};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor x() { return torch::randn({2, 8, 3}, at::kDouble); }

std::vector<Sample> samples() {
  torch::manual_seed(340);
  const at::Tensor edges = torch::tensor({-2.0, -0.5, 0.0, 0.25, 2.5}, at::kDouble);
  const at::Tensor row = std::get<0>(torch::randn({8}, at::kDouble).sort());
  const at::Tensor rows = std::get<0>(torch::randn({3, 8}, at::kDouble).sort());
  const at::Tensor values = torch::randn({3, 5}, at::kDouble);
  return {
      {"histc", {sharded(x(), 1)}, [](const Tensors& t) { return t[0].histc(5, -1, 2); }, kForward},
      {"histc_over_the_range_of_the_values",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].histc(7); },
       kForward},
      {"histc_of_equal_values",
       {sharded(torch::ones({8}, at::kDouble), 0)},
       [](const Tensors& t) { return t[0].histc(4); },
       kForward},
      {"bincount",
       {constant(torch::randint(0, 6, {13}), 0)},
       [](const Tensors& t) { return at::bincount(t[0], {}, 3).to(at::kDouble); },
       kInDouble},
      {"bincount_of_weights",
       {constant(torch::randint(0, 6, {13}), 0), sharded(torch::randn({13}, at::kDouble), 0)},
       [](const Tensors& t) { return at::bincount(t[0], t[1]); },
       kForward},
      {"bincount_of_cut_weights_for_whole_numbers",
       {constant(torch::randint(0, 6, {13})), sharded(torch::randn({13}, at::kDouble), 0)},
       [](const Tensors& t) { return at::bincount(t[0], t[1], 9); },
       kForward},
      {"histogram",
       {sharded(x(), 1)},
       [](const Tensors& t) { return std::get<0>(at::histogram(t[0], 6)); },
       kForward},
      {"histogram_edges",
       {sharded(x(), 1)},
       [](const Tensors& t) { return std::get<1>(at::histogram(t[0], 6)); },
       kForward},
      {"histogram_with_weights_as_density",
       {sharded(x(), 1), constant(torch::rand({2, 8, 3}, at::kDouble), 1)},
       [](const Tensors& t) {
         const std::vector<double> range{-2, 2};
         return std::get<0>(at::histogram(t[0], 5, range, t[1], /*density=*/true));
       },
       kForward},
      {"histogram_between_edges",
       {sharded(x(), 1)},
       [edges](const Tensors& t) { return std::get<0>(at::histogram(t[0], edges)); },
       kInDouble},
      {"histogramdd",
       {sharded(torch::randn({2, 8, 3}, at::kDouble), 1)},
       [](const Tensors& t) {
         return std::get<0>(at::histogramdd(t[0], {2, 3, 2}));
       },
       kForward},
      {"histogramdd_with_weights_as_density",
       {sharded(torch::randn({8, 2}, at::kDouble), 0), constant(torch::rand({8}, at::kDouble), 0)},
       [](const Tensors& t) {
         const std::vector<double> range{-2, 2, -1, 3};
         return std::get<0>(at::histogramdd(t[0], {4, 3}, range, t[1], /*density=*/true));
       },
       kForward},
      {"histogramdd_edges",
       {sharded(torch::randn({8, 2}, at::kDouble), 0)},
       [](const Tensors& t) {
         return std::get<1>(at::histogramdd(t[0], {4, 3}))[1];
       },
       kForward},
      with_costs({"histogramdd_of_cut_coordinates",
                  {sharded(torch::randn({6, 8}, at::kDouble), 1)},
                  [](const Tensors& t) {
                    const at::Tensor points = t[0].slice(1, 0, 2);
                    return std::get<0>(at::histogramdd(points, {4, 3}));
                  },
                  kForward},
                 4),
      {"bucketize",
       {sharded(x(), 1)},
       [edges](const Tensors& t) { return at::bucketize(t[0], edges); },
       kInDouble},
      {"searchsorted_in_a_cut_row",
       {constant(row, 0), constant(values)},
       [](const Tensors& t) { return at::searchsorted(t[0], t[1]); },
       kForward},
      {"searchsorted_in_a_cut_row_that_ends_in_nans",
       {constant(torch::tensor({-2., -1., 0., 1., 2., kNan, kNan}), 0),
        constant(torch::tensor({-3., -1., 0.5, 2., 3., kNan}))},
       [](const Tensors& t) {
         return at::searchsorted(t[0], t[1]) + 9 * at::searchsorted(t[0], t[1], false, true);
       },
       kSorted},
      {"searchsorted_row_by_row_with_nans",
       {constant(torch::tensor({{0., 1., 2., kNan}, {kNan, kNan, kNan, kNan}, {0., 0., 1., 1.}}),
                 1),
        constant(torch::tensor({{0.5, 3.}, {0.5, kNan}, {0., 1.}}))},
       [](const Tensors& t) { return at::searchsorted(t[0], t[1], /*out_int32=*/true); },
       kSorted},
      {"searchsorted_of_cut_values",
       {constant(row), constant(values, 1)},
       [](const Tensors& t) { return at::searchsorted(t[0], t[1], false, /*right=*/true); },
       kForward},
      {"searchsorted_row_by_row",
       {constant(rows, 0), constant(values, 0)},
       [](const Tensors& t) { return at::searchsorted(t[0], t[1]); },
       kForward},
      {"searchsorted_row_by_row_cut_along_the_rows",
       {constant(rows, 1), constant(values)},
       [](const Tensors& t) { return at::searchsorted(t[0], t[1]); },
       kForward},
      {"searchsorted_by_a_sorter",
       {constant(row.flip(0), 0), constant(values)},
       [](const Tensors& t) {
         const at::Tensor order = at::argsort(t[0]);
         return at::searchsorted(t[0], t[1], false, false, "right", order);
       },
       kSorted},
      {"searchsorted_of_a_number_by_a_sorter",
       {constant(row.flip(0), 0)},
       [](const Tensors& t) {
         return at::searchsorted(t[0], 0.25, true, false, {}, at::argsort(t[0]));
       },
       kSorted},
      {"searchsorted_of_a_number",
       {constant(row, 0)},
       [](const Tensors& t) { return at::searchsorted(t[0], 0.25); },
       kForward},
  };
}
SHARD_SAMPLES(Histograms, samples());

Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 7);
  const int64_t bins = r.integer(1, 9);
  const Input input =
      sharded(r.tensor(sizes), r.integer(0, static_cast<int64_t>(sizes.size()) - 1));
  const Function function = [bins](const Tensors& t) { return t[0].histc(bins, -2, 2); };
  return {"random", {input}, function, kForward};
}
SHARD_RANDOM_SAMPLES(RandomHistograms, random_sample);

}  // namespace
}  // namespace shard::testing
