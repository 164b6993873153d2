// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor rows(double shift = 0) { return torch::randn({2, 8, 3}) * 3 + shift; }

at::Tensor with_infinities() {
  auto x = torch::randn({2, 8, 3});
  x.slice(1, 0, 5).fill_(-std::numeric_limits<float>::infinity());
  return x;
}

std::vector<Sample> cases() {
  torch::manual_seed(1);
  const Check forward_only{.gradients = false};
  return {
      {"softmax_over_the_sharded_dim",
       {sharded(rows(), 1)},
       [](const Tensors& t) { return t[0].softmax(1); }},
      {"softmax_over_an_unsharded_dim",
       {sharded(rows(), 1)},
       [](const Tensors& t) { return t[0].softmax(-1); }},
      {"softmax_over_the_dim_before_the_shard",
       {sharded(rows(), 2)},
       [](const Tensors& t) { return t[0].softmax(1); }},
      {"log_softmax_over_the_sharded_dim",
       {sharded(rows(), 1)},
       [](const Tensors& t) { return t[0].log_softmax(1); }},
      {"log_softmax_over_an_unsharded_dim",
       {sharded(rows(), 1)},
       [](const Tensors& t) { return t[0].log_softmax(2); }},
      {"softmax_in_double_precision",
       {sharded(rows().to(at::kDouble), 1)},
       [](const Tensors& t) { return t[0].softmax(1); }},
      {"softmax_of_large_values_does_not_overflow",
       {sharded(rows(1e4), 1)},
       [](const Tensors& t) { return t[0].softmax(1); }},
      {"softmax_of_shards_that_are_all_minus_infinity",
       {constant(with_infinities(), 1)},
       [](const Tensors& t) { return t[0].softmax(1); },
       forward_only},
      {"softmax_with_another_dtype",
       {sharded(rows(), 1)},
       [](const Tensors& t) { return t[0].softmax(1, at::kDouble); },
       Check{.tolerance = 1e-5}},
      {"softmax_of_a_pending_sum",
       {sharded(rows(), 1)},
       [](const Tensors& t) { return t[0].sum(1).softmax(0); }},
      {"softmin_module",
       {sharded(rows(), 1)},
       [](const Tensors& t) { return torch::nn::Softmin(1)->forward(t[0]); }},
      {"softmax_of_one_dim",
       {sharded(torch::randn({8}), 0)},
       [](const Tensors& t) { return t[0].softmax(0); }},
  };
}

SHARD_SAMPLES(Softmax, cases());

/// Along any dim, of large values too.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 8);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t along = r.integer(0, last);
  const bool logs = r.coin();
  return {"random", {sharded(r.tensor(sizes) * 5, r.integer(0, last))}, [=](const Tensors& t) {
            return logs ? t[0].log_softmax(along) : t[0].softmax(along);
          }};
}
SHARD_RANDOM_SAMPLES(RandomSoftmax, random_sample);

}  // namespace
}  // namespace shard::testing
