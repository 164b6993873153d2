// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <gtest/gtest.h>
#include <shard/launch.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor sum_of(const Tensors& list) {
  at::Tensor sum = list[0].square().sum();
  for (size_t i = 1; i < list.size(); ++i) sum = sum + list[i].square().sum() * 2;
  return sum;
}

std::vector<Input> two_of_each() {
  const auto x = [] { return torch::randn({2, 8, 3}, at::kDouble); };
  const auto y = [] { return torch::randn({5, 4}, at::kDouble); };
  return {sharded(x(), 1), sharded(y(), 0), sharded(x(), 2), weight(y())};
}

std::vector<Sample> samples() {
  torch::manual_seed(95);
  return {
      {"times_a_number", two_of_each(),
       [](const Tensors& t) {
         return sum_of(at::_foreach_mul({t[0], t[1]}, 3));
       }},
      {"sums_of_tensors_that_lie_differently", two_of_each(),
       [](const Tensors& t) {
         return sum_of(at::_foreach_add({t[0], t[1]}, {t[2], t[3]}, 0.5));
       }},
      {"products_added", two_of_each(),
       [](const Tensors& t) {
         return sum_of(at::_foreach_addcmul({t[0], t[1]}, {t[2], t[3]}, {t[0], t[1]}, 0.3));
       }},
      {"written_in_place", two_of_each(),
       [](const Tensors& t) {
         const Tensors own{t[0] * 1, t[1] * 1};
         at::_foreach_add_(own, {t[2], t[3]});
         at::_foreach_mul_(own, 2);
         return sum_of(own);
       }},
      {"roots", two_of_each(),
       [](const Tensors& t) {
         return sum_of(at::_foreach_sqrt({t[0].square() + 1, t[1].square() + 1}));
       }},
      {"norms", two_of_each(),
       [](const Tensors& t) {
         return sum_of(at::_foreach_norm({t[0], t[1]}, 2));
       }},
  };
}
SHARD_SAMPLES(Foreach, samples());

/// Lists of one to three tensors, anyhow cut.
Sample random_sample(Random& r) {
  std::vector<Input> inputs;
  const int64_t count = r.integer(1, 3);
  for (int64_t i = 0; i < count; ++i) {
    const auto sizes = r.sizes(r.integer(1, 3), 1, 6);
    const auto last = static_cast<int64_t>(sizes.size()) - 1;
    inputs.push_back(sharded(r.tensor(sizes), r.integer(0, last)));
    inputs.push_back(r.coin() ? weight(r.tensor(sizes))
                              : sharded(r.tensor(sizes), r.integer(0, last)));
  }
  return {"random", inputs, [](const Tensors& t) {
            Tensors a, b;
            for (size_t i = 0; i < t.size(); i += 2) {
              a.push_back(t[i]);
              b.push_back(t[i + 1]);
            }
            return sum_of(at::_foreach_mul(at::_foreach_add(a, b, -2), a));
          }};
}
SHARD_RANDOM_SAMPLES(RandomForeach, random_sample);

}  // namespace
}  // namespace shard::testing
