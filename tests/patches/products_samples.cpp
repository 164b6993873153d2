// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor randn(at::IntArrayRef sizes) { return torch::randn(sizes, at::kDouble); }
const Check kOneGradient{.double_backward = false};

std::vector<Sample> samples() {
  torch::manual_seed(350);
  return {
      {"vdot",
       {sharded(randn({9}), 0), sharded(randn({9}), 0)},
       [](const Tensors& t) { return at::vdot(t[0], t[1]).square(); }},
      {"dist",
       {sharded(randn({9, 2}), 0), weight(randn({9, 2}))},
       [](const Tensors& t) { return at::dist(t[0], t[1], 3); }},
      {"cross",
       {sharded(randn({8, 3}), 0), weight(randn({8, 3}))},
       [](const Tensors& t) { return at::linalg_cross(t[0], t[1]).square(); }},
      {"cross_of_one_with_many",
       {sharded(randn({8, 3}), 0), weight(randn({1, 3}))},
       [](const Tensors& t) { return at::linalg_cross(t[0], t[1]).square(); }},
      with_costs({"cross_along_the_cut_dim",
                  {sharded(randn({3, 8}), 0), weight(randn({3, 8}))},
                  [](const Tensors& t) { return at::linalg_cross(t[0], t[1], 0).square(); }},
                 2),
      {"bilinear",
       {sharded(randn({8, 3}), 0), sharded(randn({8, 4}), 0), weight(randn({2, 3, 4}))},
       [](const Tensors& t) { return at::bilinear(t[0], t[1], t[2]).square(); }},
      with_costs({"bilinear_of_cut_features",
                  {sharded(randn({5, 8}), 1), weight(randn({5, 4})), weight(randn({2, 8, 4}))},
                  [](const Tensors& t) { return at::bilinear(t[0], t[1], t[2]).square(); }},
                 8, "the gradient of the cut features is formed whole from the whole weight"),
      {"cdist",
       {sharded(randn({8, 3}), 0), weight(randn({5, 3}))},
       [](const Tensors& t) { return at::cdist(t[0], t[1], 3); },
       kOneGradient},
      {"cdist_of_the_second",
       {weight(randn({5, 3})), sharded(randn({8, 3}), 0)},
       [](const Tensors& t) { return at::cdist(t[0], t[1], 2); },
       kOneGradient},
      {"cdist_of_batches",
       {sharded(randn({8, 4, 3}), 0), sharded(randn({8, 5, 3}), 0)},
       [](const Tensors& t) { return at::cdist(t[0], t[1], 1); },
       kOneGradient},
      {"cdist_of_a_broadcast_batch",
       {sharded(randn({2, 8, 3}), 1), weight(randn({1, 5, 3}))},
       [](const Tensors& t) { return at::cdist(t[0], t[1], 2); },
       kOneGradient},
      {"cdist_of_one_set_with_batches",
       {sharded(randn({8, 3}), 0), weight(randn({2, 5, 3}))},
       [](const Tensors& t) { return at::cdist(t[0], t[1], 3); },
       kOneGradient},
      {"cdist_of_batches_with_one_set",
       {sharded(randn({2, 8, 3}), 1), weight(randn({5, 3}))},
       [](const Tensors& t) { return at::cdist(t[0], t[1], 1); },
       kOneGradient},
      {"cdist_of_one_set_with_cut_rows_of_batches",
       {weight(randn({5, 3})), sharded(randn({2, 8, 3}), 1)},
       [](const Tensors& t) { return at::cdist(t[0], t[1], 3); },
       kOneGradient},
      {"cdist_of_cut_batches_with_one_set",
       {sharded(randn({8, 4, 3}), 0), weight(randn({5, 3}))},
       [](const Tensors& t) { return at::cdist(t[0], t[1], 3); },
       kOneGradient},
      {"cdist_of_one_set_with_cut_batches",
       {weight(randn({5, 3})), sharded(randn({8, 4, 3}), 0)},
       [](const Tensors& t) { return at::cdist(t[0], t[1], 3); },
       kOneGradient},
      {"cdist_of_cut_batches_with_batches_of_fewer_dims",
       {sharded(randn({2, 8, 4, 3}), 1), sharded(randn({8, 5, 3}), 0)},
       [](const Tensors& t) { return at::cdist(t[0], t[1], 3); },
       kOneGradient},
      {"euclidean_distances_of_many",
       {sharded(randn({30, 3}), 0), weight(randn({28, 3}))},
       [](const Tensors& t) { return at::cdist(t[0], t[1], 2); },
       Check{.ranks = {1, 3}, .double_backward = false, .grid = Check::Grid::OneDim}},
      with_costs({"cdist_of_cut_features",
                  {sharded(randn({6, 8}), 1), weight(randn({5, 8}))},
                  [](const Tensors& t) { return at::cdist(t[0], t[1], 2); },
                  kOneGradient},
                 2),
  };
}
SHARD_SAMPLES(Products, samples());

Sample random_sample(Random& r) {
  const int64_t rows = r.integer(1, 8);
  const int64_t features = r.integer(1, 4);
  return {"random",
          {sharded(r.tensor({rows, features}), 0), weight(r.tensor({r.integer(1, 5), features}))},
          [](const Tensors& t) { return at::cdist(t[0], t[1], 3); },
          kOneGradient};
}
SHARD_RANDOM_SAMPLES(RandomProducts, random_sample);

}  // namespace
}  // namespace shard::testing
