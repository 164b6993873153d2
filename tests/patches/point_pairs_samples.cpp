// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/dispatch/Dispatcher.h>
#include <shard/points.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor d(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); }

/// Of so few queries only: copies of the points, as in an enlarged sample, are all pairs.
Tensor few(const Tensor& queries) {
  TORCH_CHECK(queries.size(0) < 100);
  return queries;
}
Function pairs(double radius) {
  return [=](const Tensors& t) {
    return std::get<0>(radius_pairs(t[0], few(t[1]), radius)).to(at::kDouble);
  };
}
Function lengths(double radius) {
  return [=](const Tensors& t) { return std::get<1>(radius_pairs(t[0], few(t[1]), radius)).exp(); };
}

/// The op below, of a table of neighbours.
Tensor listed(const Tensor& indices) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("shard::_listed", "")
                             .typed<Tensor(const Tensor&)>();
  return op.call(indices).to(at::kDouble);
}

std::vector<Sample> samples() {
  torch::manual_seed(195);
  const Check numbers{.gradients = false, .traffic = 12};
  const Check near{.traffic = 40};
  const Tensor grid = torch::randint(0, 3, {40, 3}).to(at::kDouble);
  return {
      {"pairs", {sharded(d({23, 3}), 0), sharded(d({17, 3}), 0)}, pairs(1.2), numbers},
      {"lengths", {sharded(d({23, 3}), 0), sharded(d({17, 3}), 0)}, lengths(1.2), near},
      {"lengths_from_whole_queries",
       {sharded(d({23, 3}), 0), weight(d({5, 3}))},
       lengths(1.2),
       near},
      {"lengths_to_whole_points", {weight(d({7, 3})), sharded(d({17, 3}), 0)}, lengths(1.2), near},
      {"equal_lengths", {sharded(grid, 0), sharded(grid.narrow(0, 0, 9), 0)}, pairs(1), numbers},
      {"more_than_the_first_guess",
       {sharded(d({80, 2}), 0), sharded(d({5, 2}), 0)},
       pairs(1.5),
       numbers},
      {"one_point", {sharded(d({1, 2}), 0), sharded(d({5, 2}), 0)}, pairs(1.5), numbers},
      {"a_table_that_is_not_contiguous",
       {constant(torch::randint(-5, 9, {4, 11}).t(), 0)},
       [](const Tensors& t) { return listed(t[0]); },
       numbers},
      {"none", {sharded(d({13, 1}), 0), sharded(d({7, 1}) + 90, 0)}, pairs(0.5), numbers},
      {"points_that_are_not_contiguous",
       {sharded(d({3, 13}).t(), 0), sharded(d({3, 7}).t(), 0)},
       pairs(1.5),
       numbers},
  };
}
SHARD_SAMPLES(PointPairs, samples());

}  // namespace
}  // namespace shard::testing
