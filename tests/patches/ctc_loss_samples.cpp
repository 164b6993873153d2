// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/ctc_loss.h>
#include <ATen/ops/log_softmax.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// Of (time, batch, classes); LibTorch's gradient has no gradient. Lengths cannot be enlarged.
Sample scored(const std::string& name, const Tensor& scores, int64_t dim, const Tensor& targets,
              std::vector<int64_t> inputs, std::vector<int64_t> lengths, int64_t reduction,
              bool zero_infinity = false) {
  Check check{.traffic = 1.5};
  check.double_backward = false;
  if (scores.size(1) == 1) check.holds_whole = "one sequence is on one rank";
  return {name,
          {sharded(scores, dim), constant(targets)},
          [=](const Tensors& t) {
            return at::ctc_loss(at::log_softmax(t[0], -1), t[1], inputs, lengths, 0, reduction,
                                zero_infinity);
          },
          check};
}

std::vector<Sample> samples() {
  torch::manual_seed(230);
  const auto scores = [](std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); };
  const Tensor table = torch::randint(1, 6, {5, 4});
  const Tensor list = torch::randint(1, 6, {11});
  const std::vector<int64_t> inputs{12, 9, 12, 10, 11};
  const std::vector<int64_t> lengths{4, 1, 3, 0, 3};
  return {
      scored("cut_batch", scores({12, 5, 6}), 1, table, inputs, lengths, 0),
      scored("cut_time", scores({12, 5, 6}), 0, table, inputs, lengths, 0),
      scored("cut_classes", scores({12, 5, 6}), 2, table, inputs, lengths, 0),
      scored("targets_in_one_list", scores({12, 5, 6}), 1, list, inputs, lengths, 0),
      scored("mean", scores({12, 5, 6}), 1, list, inputs, lengths, 1),
      scored("sum_of_cut_time", scores({12, 5, 6}), 0, list, inputs, lengths, 2),
      scored("non_contiguous", scores({5, 12, 6}).transpose(0, 1), 1, table, inputs, lengths, 1),
      scored("impossible_ones_count_nothing", scores({12, 5, 6}), 1, table, {12, 3, 2, 10, 1},
             lengths, 0, true),
      scored("one_sequence", scores({12, 1, 6}), 0, table.slice(0, 0, 1), {12}, {4}, 1),
      {"transposed_scores",
       {sharded(scores({5, 12, 6}), 0), constant(table)},
       [=](const Tensors& t) {
         const Tensor by_time = at::log_softmax(t[0], -1).transpose(0, 1);
         return at::ctc_loss(by_time, t[1], inputs, lengths, 0, 1);
       },
       scored("", table, 0, table, {}, {}, 0).check},
      {"tensors_of_lengths",
       {sharded(scores({12, 5, 6}), 1), constant(table), constant(torch::tensor(inputs)),
        constant(torch::tensor(lengths))},
       [](const Tensors& t) {
         return at::ctc_loss(at::log_softmax(t[0], -1), t[1], t[2], t[3], 0, 1);
       },
       scored("", table, 0, table, {}, {}, 0).check},
  };
}
SHARD_SAMPLES(CtcLoss, samples());

}  // namespace
}  // namespace shard::testing
