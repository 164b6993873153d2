// SPDX-License-Identifier: Apache-2.0
// Ops on sets of points: (N, D) or (B, N, D) coordinates with (N, C) or (B, N, C) features. All are
// ops of LibTorch's dispatcher too ("shard::knn", ...), on plain tensors and on ShardTensors whose
// points and queries may each be cut, unevenly, even emptily. Indices are global. Collective over
// the mesh of the ShardTensors; without them, plain ops.
//
// NOTE [Ties]
// Neighbours are ordered by distance (computed in float64) and, where distances are equal, by
// index: the same on any number of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace shard {

/// The k nearest points of every query, nearest first: (indices, distances), both (Q, k) or
/// (B, Q, k), cut like the queries. Distances are differentiable (twice) with respect to points and
/// queries, by LibTorch's formula of the norm: zero where a point is the query itself.
/// Errors: SpecMismatch unless 1 <= k <= N and the sizes fit.
std::tuple<at::Tensor, at::Tensor> knn(const at::Tensor& points, const at::Tensor& queries,
                                       int64_t k);

/// The points within `radius` (inclusive) of every query, the `max_points` nearest ones: (indices,
/// distances) like knn(); where there are fewer, the indices are -1 and the distances 0.
/// Errors: SpecMismatch unless max_points >= 1, radius >= 0 and the sizes fit.
std::tuple<at::Tensor, at::Tensor> radius_search(const at::Tensor& points,
                                                 const at::Tensor& queries, double radius,
                                                 int64_t max_points);

/// All pairs (query, point) within `radius`: ((2, E) indices, (E) distances), by query, then
/// nearest first. For (N, D) and (Q, D) only. How many there are is known when they are found;
/// those of a rank's queries are its part.
std::tuple<at::Tensor, at::Tensor> radius_pairs(const at::Tensor& points, const at::Tensor& queries,
                                                double radius);

/// The rows of `x`, (N, C) or (B, N, C), that `indices`, (Q, k) or (B, Q, k), name: (Q, k, C) or
/// (B, Q, k, C), zeros where an index is negative. Differentiable: gradients go to the rows'
/// owners, who are also the only ones to send them.
at::Tensor neighbour_rows(const at::Tensor& x, const at::Tensor& indices);

/// Features at the queries: the mean of those of the k nearest points, weighted by
/// 1 / (distance^2 + eps). (Q, C) or (B, Q, C); differentiable with respect to features, points and
/// queries. Qi et al., PointNet++ (2017), section 3.4.
at::Tensor interpolate_points(const at::Tensor& points, const at::Tensor& features,
                              const at::Tensor& queries, int64_t k, double eps = 1e-8);

/// The indices, (count), of points (N, D) far apart: the first is `start`, each next one has the
/// largest distance to all before; of equal distances the lowest index. Eldar et al. (1997).
/// `count` rounds of small messages.
at::Tensor farthest_points(const at::Tensor& points, int64_t count, int64_t start = 0);

}  // namespace shard
