// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor number(bool value) { return torch::full({}, value ? 1. : 0.); }

std::vector<Sample> samples() {
  torch::manual_seed(93);
  const auto x = torch::randn({2, 8, 3});
  at::Tensor other = x.clone(at::MemoryFormat::Contiguous);
  other[1][6][2] += 1;
  return {
      {"item_of_a_sum",
       {constant(x.round(), 1)},
       [](const Tensors& t) { return torch::full({}, t[0].sum().item<double>()); }},
      {"equal_tensors",
       {constant(x, 1), constant(x.clone(), 0)},
       [](const Tensors& t) { return number(at::equal(t[0], t[1])); }},
      {"tensors_that_differ_on_one_rank",
       {constant(x, 1), constant(other, 1)},
       [](const Tensors& t) { return number(at::equal(t[0], t[1])); }},
      {"tensors_that_are_close",
       {constant(x, 1), constant(x + 1e-9, 1)},
       [](const Tensors& t) { return number(at::allclose(t[0], t[1])); }},
      {"a_nonzero_number",
       {constant(x, 1)},
       [](const Tensors& t) { return number(t[0].abs().sum().is_nonzero()); }},
  };
}
SHARD_SAMPLES(Values, samples());

/// Comparisons of tensors that are equal but for one element or none.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 6);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const at::Tensor x = r.tensor(sizes);
  at::Tensor other = x.clone(at::MemoryFormat::Contiguous);
  if (r.coin()) other.view(-1)[r.integer(0, other.numel() - 1)] += 1;
  const bool exactly = r.coin();
  return {"random",
          {constant(x, r.integer(0, last)), constant(other, r.integer(0, last))},
          [=](const Tensors& t) {
            return number(exactly ? at::equal(t[0], t[1]) : at::allclose(t[0], t[1]));
          }};
}
SHARD_RANDOM_SAMPLES(RandomValues, random_sample);

}  // namespace
}  // namespace shard::testing
