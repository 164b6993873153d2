// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/multilabel_margin_loss.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// Labels first, then -1, then what does not count. LibTorch's gradient has no gradient.
Sample scored(const std::string& name, const Tensor& scores, int64_t dim, int64_t reduction,
              int64_t target_dim = -1) {
  Tensor target = torch::tensor({3, 1, -1, 0, 2}).expand(scores.sizes()).clone();
  if (scores.dim() == 2) target[0] = torch::tensor({0, -1, 3, 3, 1});
  Check check{.traffic = 3};
  check.double_backward = false;
  if (scores.dim() == 1) check.holds_whole = "the classes of one sample are compared";
  return {name,
          {sharded(scores, dim), constant(target, target_dim)},
          [=](const Tensors& t) { return at::multilabel_margin_loss(t[0], t[1], reduction); },
          check};
}

std::vector<Sample> samples() {
  torch::manual_seed(260);
  const auto scores = [](std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); };
  return {
      scored("mean", scores({7, 5}), 0, 1),
      scored("sum", scores({7, 5}), 0, 2),
      scored("every_sample", scores({7, 5}), 0, 0),
      scored("cut_classes", scores({7, 5}), 1, 1),
      scored("every_sample_of_cut_classes", scores({7, 5}), 1, 0),
      scored("cut_targets", scores({7, 5}), -1, 1, 0),
      scored("targets_that_are_cut_otherwise", scores({7, 5}), 0, 1, 1),
      scored("non_contiguous", scores({5, 7}).t(), 0, 1),
      scored("one_row", scores({1, 5}), 0, 1),
      scored("one_sample", scores({5}), 0, 1),
  };
}
SHARD_SAMPLES(MultilabelMarginLoss, samples());

}  // namespace
}  // namespace shard::testing
