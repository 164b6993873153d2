// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

Sample drawn(const std::string& name, const at::Tensor& weights, int64_t dim, int64_t count,
             bool replacement) {
  // A second draw shows that the first one left the generator where it belongs.
  return {
      name,
      {constant(weights, dim)},
      [=](const Tensors& t) {
        torch::manual_seed(11);
        const auto first = torch::multinomial(t[0], count, replacement);
        return torch::stack({first, torch::multinomial(t[0], count, replacement)}).to(at::kDouble);
      },
      {.gradients = false, .double_backward = false, .both_precisions = false, .traffic = 3}};
}

at::Tensor rows() { return torch::rand({9, 6}, at::kDouble) + 0.01; }
at::Tensor vector() { return torch::rand({23}, at::kDouble); }

std::vector<Sample> samples() {
  torch::manual_seed(89);
  const std::string why = "the weights of a row become whole";
  return {
      drawn("rows_with_replacement", rows(), 0, 4, true),
      drawn("rows_without_replacement", rows(), 0, 4, false),
      drawn("one_sample_a_row", rows(), 0, 1, false),
      drawn("cut_classes_with_replacement", rows(), 1, 5, true),
      drawn("cut_classes_without_replacement", rows(), 1, 3, false),
      with_costs(drawn("classes_of_one_row", vector().unsqueeze(0), 1, 3, false), 6, why),
      with_costs(drawn("vector_with_replacement", vector(), 0, 40, true), 6, why),
      with_costs(drawn("vector_without_replacement", vector(), 0, 7, false), 6, why),
  };
}
SHARD_SAMPLES(Multinomial, samples());

Sample random_sample(Random& r) {
  const auto sizes = r.sizes(2, 2, 8);
  return drawn("random", r.tensor(sizes).abs() + 0.01, r.integer(0, 1), r.integer(1, sizes[1]),
               r.coin());
}
SHARD_RANDOM_SAMPLES(RandomMultinomial, random_sample);

}  // namespace
}  // namespace shard::testing
