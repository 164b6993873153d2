// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

std::vector<Sample> samples() {
  torch::manual_seed(340);
  const Tensor numbers = torch::randint(0, 7, {6, 5});
  const Check forward{.gradients = false, .double_backward = false, .both_precisions = false};
  const auto of = [](int64_t classes) {
    return [=](const Tensors& t) { return at::one_hot(t[0], classes); };
  };
  return {
      {"cut_rows", {constant(numbers, 0)}, of(9), forward},
      {"cut_columns", {constant(numbers, 1)}, of(7), forward},
      {"as_many_classes_as_there_are", {constant(numbers, 0)}, of(-1), forward},
      {"one_dim", {constant(numbers.flatten(), 0)}, of(-1), forward},
      {"transposed", {constant(numbers.t(), 0)}, of(7), forward},
      {"one_column", {constant(numbers.narrow(1, 0, 1), 0)}, of(8), forward},
  };
}
SHARD_SAMPLES(OneHot, samples());

}  // namespace
}  // namespace shard::testing
