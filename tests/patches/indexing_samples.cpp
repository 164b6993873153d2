// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<Sample> samples() {
  torch::manual_seed(90);
  const at::Tensor rows = torch::tensor({4, 0, 4, 7}, at::kLong);
  const at::Tensor mask = torch::rand({8}) > 0.5;
  const auto x = [] { return torch::randn({2, 8, 6}, at::kDouble); };
  return {
      {"index_by_a_list",
       {sharded(x(), 1)},
       [=](const Tensors& t) {
         return at::index(t[0], {at::Tensor(), rows}).square();
       }},
      {"index_by_a_cut_table",
       {sharded(x(), 1), constant(torch::randint(-8, 8, {5, 3}), 0)},
       [](const Tensors& t) {
         return at::index(t[0], {at::Tensor(), t[1]}).square();
       }},
      {"a_whole_tensor_by_a_cut_table",
       {weight(torch::randn({8, 3}, at::kDouble)), constant(torch::randint(0, 8, {2, 5}), 1)},
       [](const Tensors& t) { return at::index(t[0], {t[1]}).square(); }},
      {"index_by_two_lists",
       {sharded(x(), 1)},
       [=](const Tensors& t) {
         return at::index(t[0], {at::Tensor(), rows, torch::tensor({1, 0, 5, 2})}).square();
       }},
      {"put_rows_into_the_sharded_dim",
       {sharded(x(), 1), sharded(torch::randn({2, 3, 6}, at::kDouble), 1)},
       [](const Tensors& t) {
         return at::index_put(t[0], {at::Tensor(), torch::tensor({6, -8, 3})}, t[1]).square();
       }},
      {"add_a_cut_table_of_rows",
       {sharded(torch::randn({9, 3}, at::kDouble), 0), constant(torch::randint(-9, 9, {7, 2}), 0),
        weight(torch::randn({3}, at::kDouble))},
       [](const Tensors& t) {
         return at::index_put(t[0], {t[1]}, t[2], /*accumulate=*/true).square();
       }},
      {"put_in_place",
       {sharded(torch::randn({9, 3}, at::kDouble), 0), weight(torch::randn({3}, at::kDouble))},
       [](const Tensors& t) {
         at::Tensor x = t[0] * 1;
         x.index_put_({torch::tensor({8, 0, 3})}, t[1]);
         return x.square();
       }},
  };
}
SHARD_SAMPLES(Indexing, with_traffic(samples(), {{"index_by_a_list", 2.25},
                                                 {"index_by_a_cut_table", 6},
                                                 {"index_by_two_lists", 2.25},
                                                 {"put_rows_into_the_sharded_dim", 2},
                                                 {"add_a_cut_table_of_rows", 6}}));

/// Rows of any dim, in any order, some more than once, by a table of them.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 7);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t along = r.integer(0, last);
  const auto table = r.sizes(r.integer(1, 2), 1, 4);
  const int64_t rows = sizes[static_cast<size_t>(along)];
  const at::Tensor index = (r.tensor(table).abs() * 100).to(at::kLong).remainder(rows);
  std::vector<at::Tensor> before(static_cast<size_t>(along));
  Check check{.traffic = 20};
  check.holds_whole = "some of the tables name one row many times";
  return {"random",
          {sharded(r.tensor(sizes), r.integer(0, last)),
           constant(index, r.integer(-1, index.dim() - 1))},
          [=](const Tensors& t) {
            c10::List<std::optional<at::Tensor>> indices;
            for (const auto& none : before) indices.push_back(none);
            indices.push_back(t[1]);
            return at::index(t[0], indices).square();
          },
          check};
}
SHARD_RANDOM_SAMPLES(RandomIndexing, random_sample);

std::vector<Sample> flat_cases() {
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
  };
}
SHARD_SAMPLES(FlatIndexing, with_costs(flat_cases(), 8, "take() needs the whole"));

}  // namespace
}  // namespace shard::testing
