// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<Sample> samples() {
  torch::manual_seed(96);
  const at::Tensor places = torch::tensor({0, 17, -3, 40}, at::kLong);
  const Check once{.both_precisions = false};
  return {
      {"put",
       {sharded(torch::randn({2, 8, 6}, at::kDouble), 1), weight(torch::randn({4}, at::kDouble))},
       [=](const Tensors& t) { return at::put(t[0], places, t[1]).square(); },
       once},
      {"put_that_adds",
       {sharded(torch::randn({2, 8, 6}, at::kDouble), 2), weight(torch::randn({4}, at::kDouble))},
       [=](const Tensors& t) {
         return at::put(t[0], places.remainder(2), t[1], /*accumulate=*/true).square();
       },
       once},
      {"put_in_place",
       {sharded(torch::randn({8, 6}, at::kDouble), 0), weight(torch::randn({4}, at::kDouble))},
       [=](const Tensors& t) { return (t[0] * t[0]).put_(places, t[1]).square(); },
       once},
      {"take",
       {sharded(torch::randn({8, 6}, at::kDouble), 0)},
       [=](const Tensors& t) {
         return at::take(t[0], places.view({2, 2})).square();
       },
       once},
      {"take_from_columns_that_lie_apart",
       {sharded(torch::randn({1, 6, 11}, at::kDouble).transpose(1, 2), 1)},
       [=](const Tensors& t) { return at::take(t[0], places).square(); },
       once},
      {"take_from_cut_columns",
       {sharded(torch::randn({2, 8, 6}, at::kDouble), 1)},
       [=](const Tensors& t) { return at::take(t[0], places).square(); },
       once},
      {"take_by_cut_places",
       {sharded(torch::randn({8, 6}, at::kDouble), 0), constant(torch::randint(-48, 48, {9}), 0)},
       [](const Tensors& t) { return at::take(t[0], t[1]).square(); },
       once},
      {"take_from_a_whole_tensor",
       {weight(torch::randn({8, 6}, at::kDouble)), constant(torch::randint(-48, 48, {3, 9}), 1)},
       [](const Tensors& t) { return at::take(t[0], t[1]).square(); },
       once},
  };
}
SHARD_SAMPLES(FlatIndexing, with_costs(samples(), 8));

}  // namespace
}  // namespace shard::testing
