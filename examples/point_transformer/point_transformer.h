// SPDX-License-Identifier: Apache-2.0
// A point-cloud transformer in plain torch::nn: vector attention over the k nearest neighbours, on
// all points and on a coarser set. Zhao et al., Point Transformer (2021). Its ops on points are
// those of <shard/points.h>, which take plain tensors and cut ones alike.
#pragma once

#include <shard/points.h>
#include <torch/torch.h>

#include <utility>

namespace point_transformer {

/// Each point looks at its neighbours: features (N, C) -> (N, C).
class LayerImpl : public torch::nn::Module {
 public:
  explicit LayerImpl(int64_t channels)
      : norm_(torch::nn::LayerNormOptions({channels})),
        query_(channels, channels),
        key_(channels, channels),
        value_(channels, channels),
        position_(torch::nn::Linear(3, channels), torch::nn::GELU(),
                  torch::nn::Linear(channels, channels)),
        weight_(torch::nn::Linear(channels, channels), torch::nn::GELU(),
                torch::nn::Linear(channels, channels)) {
    register_module("norm", norm_);
    register_module("query", query_);
    register_module("key", key_);
    register_module("value", value_);
    register_module("position", position_);
    register_module("weight", weight_);
  }

  /// `neighbours` (N, k): indices of points.
  torch::Tensor forward(const torch::Tensor& points, const torch::Tensor& features,
                        const torch::Tensor& neighbours) {
    const torch::Tensor x = norm_(features);
    const torch::Tensor offsets = points.unsqueeze(1) - shard::neighbour_rows(points, neighbours);
    const torch::Tensor position = position_->forward(offsets);
    const torch::Tensor keys = shard::neighbour_rows(key_(x), neighbours);
    const torch::Tensor values = shard::neighbour_rows(value_(x), neighbours);
    const torch::Tensor scores = weight_->forward(query_(x).unsqueeze(1) - keys + position);
    return features + (torch::softmax(scores, 1) * (values + position)).sum(1);
  }

 private:
  torch::nn::LayerNorm norm_;
  torch::nn::Linear query_, key_, value_;
  torch::nn::Sequential position_, weight_;
};
TORCH_MODULE(Layer);

/// points (N, 3) and features (N, in) -> (N, out). A layer on all points, one on the `coarse`
/// points that lie farthest apart, whose features are the largest among their neighbours, and one
/// on all points again, to which the coarse features are interpolated.
class PointTransformerImpl : public torch::nn::Module {
 public:
  PointTransformerImpl(int64_t in, int64_t out, int64_t channels, int64_t neighbours,
                       int64_t coarse)
      : neighbours_(neighbours),
        coarse_(coarse),
        embedding_(in + 3, channels),
        head_(channels, out),
        fine_(channels),
        middle_(channels),
        last_(channels) {
    register_module("embedding", embedding_);
    register_module("fine", fine_);
    register_module("middle", middle_);
    register_module("last", last_);
    register_module("head", head_);
  }

  torch::Tensor forward(const torch::Tensor& points, const torch::Tensor& features) {
    const torch::Tensor near = neighbours_of(points, points);
    const torch::Tensor x = fine_(points, embedding_(torch::cat({points, features}, 1)), near);

    const torch::Tensor places = points.index_select(0, shard::farthest_points(points, coarse_));
    const torch::Tensor pooled = shard::neighbour_rows(x, neighbours_of(points, places)).amax(1);
    const torch::Tensor coarse = middle_(places, pooled, neighbours_of(places, places));

    const torch::Tensor wide = shard::interpolate_points(places, coarse, points, 3, 1e-3);
    return head_(last_(points, x + wide, near));
  }

 private:
  torch::Tensor neighbours_of(const torch::Tensor& points, const torch::Tensor& queries) const {
    return std::get<0>(shard::knn(points, queries, neighbours_));
  }

  int64_t neighbours_, coarse_;
  torch::nn::Linear embedding_, head_;
  Layer fine_, middle_, last_;
};
TORCH_MODULE(PointTransformer);

}  // namespace point_transformer
