// SPDX-License-Identifier: Apache-2.0
// Ops on point sets that are composed of covered ones: they hold on shards by themselves.
#include <ATen/ops/cat.h>
#include <ATen/ops/index.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <shard/nearest.h>
#include <shard/patch.h>
#include <shard/points.h>

#include <limits>

namespace shard {
namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;

/// The op's typed handle, looked up once.
template <class Schema>
auto op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Schema>();
}

void check_sets(const char* name, const Tensor& points, const Tensor& queries) {
  const int64_t ndim = points.dim();
  check<SpecMismatch>(
      (ndim == 2 || ndim == 3) && queries.dim() == ndim && points.size(-1) == queries.size(-1) &&
          points.size(-1) >= 1 && (ndim == 2 || points.size(0) == queries.size(0)),
      name, "got points of ", points.sizes(), " and queries of ", queries.sizes(),
      "; expected (N, D) and (Q, D), or (B, N, D) and (B, Q, D). Correct the sizes.");
  check<SpecMismatch>(points.is_floating_point() && queries.is_floating_point(), name, "got ",
                      points.scalar_type(), " points and ", queries.scalar_type(),
                      " queries; expected floating-point coordinates. Convert them.");
}

/// Of the nearest points within a radius: squared distances and indices (Nearest).
Nearest nearest(const Tensor& points, const Tensor& queries, int64_t k, double radius) {
  static const auto search =
      op<Pair(const Tensor&, const Tensor&, int64_t, double, int64_t, at::TensorList)>(
          "shard::_neighbours");
  const auto [squared, indices] = search.call(points.detach(), queries.detach(), k, radius, 0, {});
  return {squared, indices};
}

/// From the search when nobody differentiates, else again from the coordinates.
Tensor distances(const Tensor& points, const Tensor& queries, const Nearest& found,
                 const Tensor& indices) {
  const bool has_gradient =
      at::GradMode::is_enabled() && (points.requires_grad() || queries.requires_grad());
  if (!has_gradient) return found.squared.sqrt().to(points.scalar_type());
  const Tensor offsets = queries.unsqueeze(-2) - neighbour_rows(points, indices);
  return at::linalg_vector_norm(offsets, 2, at::IntArrayRef{-1});
}

Pair knn_of_sets(const Tensor& points, const Tensor& queries, int64_t k) {
  check_sets("shard::knn", points, queries);
  check<SpecMismatch>(k >= 1 && k <= points.size(-2), "shard::knn", "got k = ", k, " for ",
                      points.size(-2), " points; expected 1 <= k <= points. Lower k.");
  const auto found = nearest(points, queries, k, std::numeric_limits<double>::infinity());
  return {found.indices, distances(points, queries, found, found.indices)};
}

Pair radius_search_of_sets(const Tensor& points, const Tensor& queries, double radius,
                           int64_t max_points) {
  check_sets("shard::radius_search", points, queries);
  check<SpecMismatch>(radius >= 0 && max_points >= 1, "shard::radius_search", "got a radius of ",
                      radius, " and at most ", max_points,
                      " points; expected radius >= 0 and max_points >= 1. Correct them.");
  const auto found = nearest(points, queries, max_points, radius);
  const Tensor is_point = are_points(found.indices);
  const Tensor indices = found.indices.masked_fill(is_point.logical_not(), -1);
  return {indices,
          distances(points, queries, found, indices).masked_fill(is_point.logical_not(), 0)};
}

/// Rows of every set of a batch. Cut along the batch, the sets stay where they are.
Tensor rows_of_sets(const Tensor& x, const Tensor& indices) {
  const bool has_own_sets = is_shard_tensor(x) && spec_of(x)->placement().is_shard(0);
  if (has_own_sets) {
    const Tensor flat = indices.flatten(1, 2).unsqueeze(2).expand({-1, -1, x.size(2)});
    return x.gather(1, flat).unflatten(1, {indices.size(1), indices.size(2)});
  }
  std::vector<Tensor> rows;
  for (int64_t b = 0; b < x.size(0); ++b)
    rows.push_back(at::index(x.select(0, b), {indices.select(0, b)}));
  return at::stack(rows, 0);
}

Tensor rows_of_neighbours(const Tensor& x, const Tensor& indices) {
  check<SpecMismatch>(
      x.dim() == indices.dim() && (x.dim() == 2 || x.dim() == 3), "shard::neighbour_rows",
      "got rows of ", x.sizes(), " and indices of ", indices.sizes(),
      "; expected (N, C) and (Q, k), or (B, N, C) and (B, Q, k). Correct the sizes.");
  if (x.size(-2) == 0) {  // none can be named
    auto sizes = indices.sizes().vec();
    sizes.push_back(x.size(-1));
    return indices.unsqueeze(-1).to(x.scalar_type()).mul(0).expand(sizes);
  }
  const Tensor is_point = indices.ge(0);
  const Tensor existing = indices.clamp_min(0);
  const Tensor rows = x.dim() == 2 ? at::index(x, {existing}) : rows_of_sets(x, existing);
  return rows.masked_fill(is_point.logical_not().unsqueeze(-1), 0);
}

Tensor interpolation(const Tensor& points, const Tensor& features, const Tensor& queries, int64_t k,
                     double eps) {
  const auto [indices, distance] = shard::knn(points, queries, k);
  const Tensor weights = (distance.square() + eps).reciprocal();
  const Tensor shares = weights / weights.sum(-1, true);
  return (neighbour_rows(features, indices) * shares.unsqueeze(-1)).sum(-2);
}

Tensor farthest_of_set(const Tensor& points, int64_t count, int64_t start) {
  check<SpecMismatch>(points.dim() == 2 && count >= 1 && count <= points.size(0) && start >= 0 &&
                          start < points.size(0),
                      "shard::farthest_points", "got ", count, " of points of ", points.sizes(),
                      ", the first ", start,
                      "; expected (N, D), 1 <= count <= N and 0 <= start < N. Correct them.");
  const at::NoGradGuard guard;
  const Tensor exact = points.detach().to(at::kDouble);
  std::vector<Tensor> chosen;
  Tensor next = at::scalar_tensor(start, exact.options().dtype(at::kLong)).view({1});
  Tensor nearest_chosen;
  for (int64_t i = 0; i < count; ++i) {
    chosen.push_back(next);
    const Tensor squared = (exact - exact.index_select(0, next)).square().sum(1);
    nearest_chosen = i == 0 ? squared : at::minimum(nearest_chosen, squared);
    next = nearest_chosen.argmax(0).view({1});
  }
  return at::cat(chosen);
}

TORCH_LIBRARY_FRAGMENT(shard, m) {
  m.def("knn(Tensor points, Tensor queries, int k) -> (Tensor indices, Tensor distances)",
        knn_of_sets);
  m.def(
      "radius_search(Tensor points, Tensor queries, float radius, int max_points)"
      " -> (Tensor indices, Tensor distances)",
      radius_search_of_sets);
  m.def("neighbour_rows(Tensor x, Tensor indices) -> Tensor", rows_of_neighbours);
  m.def(
      "interpolate_points(Tensor points, Tensor features, Tensor queries, int k, float eps=1e-8)"
      " -> Tensor",
      interpolation);
  m.def("farthest_points(Tensor points, int count, int start=0) -> Tensor", farthest_of_set);
}

}  // namespace

std::tuple<Tensor, Tensor> knn(const Tensor& points, const Tensor& queries, int64_t k) {
  static const auto handle = op<Pair(const Tensor&, const Tensor&, int64_t)>("shard::knn");
  return handle.call(points, queries, k);
}

std::tuple<Tensor, Tensor> radius_search(const Tensor& points, const Tensor& queries, double radius,
                                         int64_t max_points) {
  static const auto handle =
      op<Pair(const Tensor&, const Tensor&, double, int64_t)>("shard::radius_search");
  return handle.call(points, queries, radius, max_points);
}

Tensor neighbour_rows(const Tensor& x, const Tensor& indices) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&)>("shard::neighbour_rows");
  return handle.call(x, indices);
}

Tensor interpolate_points(const Tensor& points, const Tensor& features, const Tensor& queries,
                          int64_t k, double eps) {
  static const auto handle =
      op<Tensor(const Tensor&, const Tensor&, const Tensor&, int64_t, double)>(
          "shard::interpolate_points");
  return handle.call(points, features, queries, k, eps);
}

Tensor farthest_points(const Tensor& points, int64_t count, int64_t start) {
  static const auto handle = op<Tensor(const Tensor&, int64_t, int64_t)>("shard::farthest_points");
  return handle.call(points, count, start);
}

}  // namespace shard
