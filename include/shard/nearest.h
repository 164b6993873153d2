// SPDX-License-Identifier: Apache-2.0
// The nearest points of a set to places, block of points by block. Plain tensors, no ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace shard {

/// For every query the nearest points found so far, best first: by distance, of equal distances by
/// index. Distances are computed in float64, coordinate after coordinate, so which is nearer does
/// not depend on blocks, ranks or devices. Coordinates that are NaN count as infinitely far.
struct Nearest {
  at::Tensor squared;  ///< (..., Q, k) float64: squared distances; the squared radius where none is
  at::Tensor indices;  ///< (..., Q, k) long; the largest number where there is none

  /// Nothing found within `radius` (inclusive; infinity: any distance).
  static Nearest none(c10::IntArrayRef sizes, double radius, const at::TensorOptions& options);
};

/// `found` and those of `points` (N, D) or (B, N, D), numbered from `first`, that are nearer to
/// `queries` (Q, D) or (B, Q, D). A k-d tree on CPUs, blocks of all distances on other devices.
Nearest with_points(const Nearest& found, const at::Tensor& points, const at::Tensor& queries,
                    int64_t first);
/// The same by all distances.
Nearest with_points_by_sorting(const Nearest& found, const at::Tensor& points,
                               const at::Tensor& queries, int64_t first);

/// Which entries of Nearest::indices are points.
at::Tensor are_points(const at::Tensor& indices);

}  // namespace shard
