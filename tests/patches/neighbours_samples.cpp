// SPDX-License-Identifier: Apache-2.0
#include <shard/points.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor d(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); }
/// Corners of a grid: many distances are equal.
Tensor grid_points(int64_t n) { return torch::randint(0, 3, {n, 3}).to(at::kDouble); }

Tensor number_of(const std::tuple<Tensor, Tensor>& found) {
  return std::get<0>(found).to(at::kDouble);
}
Tensor distance_of(const std::tuple<Tensor, Tensor>& found) { return std::get<1>(found); }

/// Costs: a block of points goes to every rank that it is near to. Random points are near to all;
/// gradients of distances travel back to the points.
Check near_all(bool gradients = true) {
  Check check{.gradients = gradients, .traffic = 12};
  check.double_backward = gradients;
  return check;
}
/// Which neighbours there are: numbers, no gradients.
Check numbers_only() { return near_all(false); }

Function indices_of_knn(int64_t k) {
  return [k](const Tensors& t) { return number_of(knn(t[0], t[1], k)); };
}
Function distances_of_knn(int64_t k) {
  return [k](const Tensors& t) { return distance_of(knn(t[0], t[1], k)); };
}

std::vector<Sample> nearest() {
  torch::manual_seed(190);
  return {
      {"cut_points_cut_queries",
       {sharded(d({23, 3}), 0), sharded(d({17, 3}), 0)},
       distances_of_knn(4),
       near_all()},
      {"cut_points_whole_queries",
       {sharded(d({23, 3}), 0), weight(d({9, 3}))},
       distances_of_knn(4),
       near_all()},
      {"whole_points_cut_queries",
       {weight(d({13, 2})), sharded(d({17, 2}), 0)},
       distances_of_knn(3),
       near_all()},
      {"numbers",
       {sharded(d({23, 3}), 0), sharded(d({17, 3}), 0)},
       indices_of_knn(5),
       numbers_only()},
      {"ties",
       {sharded(grid_points(40), 0), sharded(grid_points(19), 0)},
       indices_of_knn(7),
       numbers_only()},
      {"ties_for_whole_queries",
       {sharded(grid_points(40), 0), constant(grid_points(19))},
       indices_of_knn(7),
       numbers_only()},
      {"all_points",
       {sharded(d({6, 2}), 0), sharded(d({5, 2}), 0)},
       distances_of_knn(6),
       near_all()},
      {"one_point",
       {sharded(d({1, 3}), 0), sharded(d({5, 3}), 0)},
       distances_of_knn(1),
       near_all()},
      {"many_coordinates",
       {sharded(d({19, 11}), 0), sharded(d({7, 11}), 0)},
       distances_of_knn(3),
       near_all()},
      {"cut_coordinates",
       {sharded(d({11, 4}), 1), sharded(d({7, 4}), 1)},
       distances_of_knn(3),
       near_all()},
      {"sets_cut_along_points",
       {sharded(d({2, 13, 3}), 1), sharded(d({2, 7, 3}), 1)},
       distances_of_knn(3),
       near_all()},
      {"sets_cut_along_the_batch",
       {sharded(d({4, 13, 3}), 0), sharded(d({4, 7, 3}), 0)},
       distances_of_knn(3),
       near_all()},
      {"sets_cut_differently",
       {sharded(d({4, 13, 3}), 1), sharded(d({4, 7, 3}), 0)},
       indices_of_knn(3),
       numbers_only()},
      {"points_that_are_not_contiguous",
       {sharded(d({3, 13}).t(), 0), sharded(d({3, 7}).t(), 0)},
       indices_of_knn(3),
       numbers_only()},
  };
}
SHARD_SAMPLES(NearestPoints, nearest());

Function within(double radius, int64_t most, bool distances) {
  return [=](const Tensors& t) {
    const auto found = radius_search(t[0], t[1], radius, most);
    return distances ? distance_of(found) : number_of(found);
  };
}

std::vector<Sample> balls() {
  torch::manual_seed(191);
  return {
      {"some_within",
       {sharded(d({23, 3}), 0), sharded(d({17, 3}), 0)},
       within(1.1, 6, true),
       near_all()},
      {"numbers_within",
       {sharded(d({23, 3}), 0), sharded(d({17, 3}), 0)},
       within(1.1, 6, false),
       numbers_only()},
      {"on_the_sphere",
       {sharded(grid_points(31), 0), sharded(grid_points(9), 0)},
       within(1, 9, false),
       numbers_only()},
      {"none_within",
       {sharded(d({13, 3}), 0), sharded(d({7, 3}) + 50, 0)},
       within(0.5, 3, false),
       numbers_only()},
      {"no_points_at_all",
       {sharded(d({0, 3}), 0), sharded(d({7, 3}), 0)},
       within(9, 3, true),
       near_all()},
      {"no_queries",
       {sharded(d({9, 3}), 0), sharded(d({0, 3}), 0)},
       within(9, 3, true),
       near_all()},
      {"more_than_there_are",
       {sharded(d({5, 3}), 0), weight(d({7, 3}))},
       within(2, 8, true),
       near_all()},
      {"sets_of_points",
       {sharded(d({2, 13, 3}), 1), weight(d({2, 7, 3}))},
       within(1.5, 4, true),
       near_all()},
  };
}
SHARD_SAMPLES(PointsWithin, balls());

std::vector<Sample> features() {
  torch::manual_seed(192);
  const Function interpolated = [](const Tensors& t) {
    return interpolate_points(t[0], t[1], t[2], 3, 0.01);
  };
  return {
      {"interpolated",
       {sharded(d({23, 3}), 0), sharded(d({23, 5}), 0), sharded(d({17, 3}), 0)},
       interpolated,
       near_all()},
      {"interpolated_to_whole_queries",
       {sharded(d({23, 3}), 0), sharded(d({23, 5}), 0), weight(d({7, 3}))},
       interpolated,
       near_all()},
      {"interpolated_sets",
       {sharded(d({2, 13, 3}), 1), sharded(d({2, 13, 5}), 1), sharded(d({2, 7, 3}), 1)},
       interpolated,
       near_all()},
      {"farthest_points",
       {sharded(d({23, 3}), 0)},
       [](const Tensors& t) { return farthest_points(t[0], 6, 5).to(at::kDouble); },
       Check{.gradients = false, .traffic = 12}},
      {"farthest_points_of_a_grid",
       {sharded(grid_points(29), 0)},
       [](const Tensors& t) { return farthest_points(t[0], 9).to(at::kDouble); },
       Check{.gradients = false, .traffic = 12}},
      {"features_of_a_sample",
       {sharded(d({23, 3}), 0), sharded(d({23, 4}), 0)},
       [](const Tensors& t) { return t[1].index_select(0, farthest_points(t[0], 7)).square(); },
       near_all()},
  };
}
SHARD_SAMPLES(PointFeatures, features());

/// Any two sets, the points of which may be on a coarse grid.
Sample random_sample(Random& r) {
  const int64_t dims = r.integer(1, 4);
  const bool is_batched = r.integer(0, 2) == 0;
  const bool has_ties = r.integer(0, 1) == 0;
  const int64_t n = r.integer(1, 30);
  const auto set = [&](int64_t count) {
    const Tensor x = r.tensor(is_batched ? std::vector<int64_t>{2, count, dims}
                                         : std::vector<int64_t>{count, dims});
    return has_ties ? x.round() : x;
  };
  const int64_t rows = is_batched ? 1 : 0;
  const int64_t k = r.integer(1, std::min<int64_t>(n, 9));
  return {"random",
          {sharded(set(n), r.integer(0, rows)), sharded(set(r.integer(1, 20)), r.integer(0, rows))},
          indices_of_knn(k),
          numbers_only()};
}
SHARD_RANDOM_SAMPLES(RandomNeighbours, random_sample);

}  // namespace
}  // namespace shard::testing
