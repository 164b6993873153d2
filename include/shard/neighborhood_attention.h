// SPDX-License-Identifier: Apache-2.0
// Attention of every point of a 1-d, 2-d or 3-d grid to the points around it (Hassani et al.:
// Neighborhood Attention Transformer; the windows are those of NATTEN).
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/spec.h>

#include <optional>
#include <vector>

namespace shard {

/// query, key (batch, points..., heads, e), value (batch, points..., heads, f) -> (batch,
/// points..., heads, f). One integer for every dim of points, or one for all:
///   kernel_size: neighbours along the dim. The window is centred (of an even kernel one point
///     more lies before) and shifted inwards at the borders, so every query has kernel_size of
///     them.
///   dilation: distance between neighbours; kernel_size * dilation may not exceed the points.
///   is_causal: a query sees itself and the kernel_size - 1 neighbours before, fewer at the begin.
/// `scale` defaults to 1 / sqrt(e). Also an op of LibTorch's dispatcher,
/// shard::neighborhood_attention, on plain tensors and on ShardTensors cut along any dim (the
/// features are moved to the points); then collective: one exchange of the halo of keys and values,
/// none along batch and heads. Differentiable twice. Errors: SpecMismatch on every rank.
at::Tensor neighborhood_attention(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, at::IntArrayRef kernel_size,
                                  at::IntArrayRef dilation = 1,
                                  const std::vector<bool>& is_causal = {false},
                                  std::optional<double> scale = std::nullopt);

// ---- for the patch: one dim of points

struct Neighborhood {
  int64_t length = 0;  ///< points of the whole grid
  int64_t kernel = 1;
  int64_t dilation = 1;
  bool is_causal = false;

  /// The neighbours of a point: first and last.
  Rows seen_by(int64_t query) const;
  /// The points between the first and the last that some of these queries see.
  Rows seen_by(const Rows& queries) const;
};

/// What a rank has of one dim of points: queries, and all keys that they see (global rows).
struct NeighborhoodPart {
  Neighborhood window;
  Rows queries;
  Rows keys;
};

/// neighborhood_attention of plain tensors of these parts, one a dim of points. Holds, beside its
/// inputs, keys and values about 2^dims times, and the scores that one kernel makes at once.
at::Tensor attend_to_neighbors(const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const std::vector<NeighborhoodPart>& parts,
                               double scale);

}  // namespace shard
