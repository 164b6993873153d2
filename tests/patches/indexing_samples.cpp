// SPDX-License-Identifier: Apache-2.0
#include <shard/error.h>
#include <shard/launch.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

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

/// Elements and rows named by several lists, one of them along the cut dim.
std::vector<Sample> several_lists() {
  torch::manual_seed(98);
  const auto d = [](const std::vector<int64_t>& sizes) { return torch::randn(sizes, at::kDouble); };
  const auto rows = [](int64_t n, const std::vector<int64_t>& sizes) {
    return torch::randint(-n, n, sizes, at::kLong);
  };
  const auto by_both = [](const Tensors& t) { return at::index(t[0], {t[1], t[2]}).square(); };
  const auto put = [](bool accumulates) {
    return [=](const Tensors& t) {
      return at::index_put(t[0], {t[1], t[2]}, t[3], accumulates).square();
    };
  };
  const Tensor once = torch::tensor({5, -13, 12}, at::kLong);
  return {
      {"elements",
       {sharded(d({13, 4}), 0), constant(rows(13, {7})), constant(rows(4, {7}))},
       by_both},
      {"elements_of_cut_columns",
       {sharded(d({4, 13}), 1), constant(rows(4, {7})), constant(rows(13, {7}))},
       by_both},
      {"elements_by_cut_lists",
       {sharded(d({13, 4}), 0), constant(rows(13, {9}), 0), constant(rows(4, {9}), 0)},
       by_both},
      {"elements_by_tables_that_broadcast",
       {sharded(d({13, 4}).t(), 1), constant(rows(4, {5, 1}), 0), constant(rows(13, {3}))},
       by_both},
      {"rows_of_the_last_dim",
       {sharded(d({13, 4, 3}), 1), constant(rows(13, {7})), constant(rows(4, {7}))},
       by_both},
      {"lists_with_a_dim_between",
       {sharded(d({3, 4, 13}), 2), constant(rows(3, {6})), constant(rows(13, {6}), 0)},
       [](const Tensors& t) {
         return at::index(t[0], {t[1], Tensor(), t[2]}).square();
       }},
      {"every_dim",
       {sharded(d({11, 3, 4}), 0)},
       [=](const Tensors& t) {
         const auto list = [](const std::vector<int64_t>& rows) {
           return torch::tensor(rows, at::kLong);
         };
         return at::index(t[0], {list({0, 2, 9}), list({1, 2, -3}), list({0, 0, 2})}).square();
       }},
      {"one_element",
       {sharded(d({13, 4}), 0), constant(rows(13, {})), constant(rows(4, {}))},
       by_both},
      {"no_elements",
       {sharded(d({13, 4}), 0), constant(rows(13, {0})), constant(rows(4, {0}))},
       by_both},
      {"a_column_of_one",
       {sharded(d({13, 1}), 0), constant(rows(13, {6})), constant(rows(1, {6}))},
       by_both},
      {"elements_put",
       {sharded(d({13, 4}), 0), constant(once), constant(torch::tensor({1, 3, 0})),
        sharded(d({3}), 0)},
       put(false)},
      {"one_value_put_into_elements",
       {sharded(d({4, 13}), 1), constant(torch::tensor({1, 3, 0})), constant(once), weight(d({}))},
       put(false)},
      {"one_element_put",
       {sharded(d({13, 4}), 0), constant(rows(13, {})), constant(rows(4, {})), weight(d({}))},
       put(false)},
      {"elements_added",
       {sharded(d({13, 4}), 0), constant(rows(13, {9}), 0), constant(rows(4, {9}), 0),
        sharded(d({9}), 0)},
       put(true)},
      {"rows_added_with_a_dim_between",
       {sharded(d({3, 4, 13}), 2), constant(rows(3, {6})), constant(rows(13, {6})),
        weight(d({6, 4}))},
       [](const Tensors& t) {
         return at::index_put(t[0], {t[1], Tensor(), t[2]}, t[3], true).square();
       }},
      {"elements_added_in_place",
       {sharded(d({13, 4}), 0), constant(rows(13, {9})), constant(rows(4, {9})), weight(d({9}))},
       [](const Tensors& t) {
         Tensor x = t[0] * 1;
         x.index_put_({t[1], t[2]}, t[3], true);
         return x.square();
       }},
      {"masked_elements",
       {sharded(d({13, 4}), 0), constant(rows(13, {7})), constant(rows(4, {7}))},
       [](const Tensors& t) {
         return at::_unsafe_masked_index(t[0], t[1] > 2, {t[1] * 2, t[2]}, 1.5).square();
       }},
  };
}
SHARD_SAMPLES(SeveralLists, with_costs(several_lists(), 8, "few elements are named, some often"));

TEST(SeveralListsErrors, AreTheSameOnAllRanks) {
  run_ranks(3, [](World& world) {
    const at::Tensor x = shard::zeros({9, 4}, world.mesh(), {Shard(0)});
    const auto zero = torch::zeros({1}, at::kLong);
    EXPECT_THROW(at::index(x, {zero + 9, zero}), SpecMismatch);
    EXPECT_THROW(at::index(x, {zero, zero + 4}), SpecMismatch);  // would be the next row's first
  });
}

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

at::Tensor bits(const std::vector<int64_t>& sizes) { return torch::rand(sizes) > 0.4; }

std::vector<Sample> masks() {
  torch::manual_seed(97);
  const auto d = [](const std::vector<int64_t>& sizes) { return torch::randn(sizes, at::kDouble); };
  const auto by_mask = [](const Tensors& t) { return at::index(t[0], {t[1]}).square(); };
  const auto by_second = [](const Tensors& t) {
    return at::index(t[0], {at::Tensor(), t[1]}).square();
  };
  const auto put = [](const Tensors& t) { return at::index_put(t[0], {t[1]}, t[2]).square(); };
  const Check moves{.traffic = 3};
  const Check all_of_it{.traffic = 16};
  const auto first_of_each_row = torch::tensor({1, 0, 0, 0}, at::kBool).expand({9, 4});
  return {
      {"by_a_mask", {sharded(d({9, 4}), 0), constant(bits({9, 4}), 0)}, by_mask},
      {"by_its_own_values",
       {sharded(d({9, 4}), 0)},
       [](const Tensors& t) { return at::index(t[0], {t[0] > 0}).square(); }},
      {"rows_by_a_mask", {sharded(d({9, 4}), 0), constant(bits({9}), 0)}, by_mask},
      {"rows_by_a_whole_mask", {sharded(d({9, 4}), 0), constant(bits({9}))}, by_mask, moves},
      {"rows_of_a_whole_tensor", {weight(d({9, 4})), constant(bits({9}), 0)}, by_mask, moves},
      {"rows_by_a_mask_along_another_dim",
       {sharded(d({9, 4}), 1), constant(bits({9}))},
       by_mask,
       moves},
      {"columns_by_a_mask", {sharded(d({3, 8, 2}), 1), constant(bits({8}), 0)}, by_second},
      {"columns_by_a_mask_of_two_dims",
       {sharded(d({3, 8, 4, 2}), 2), constant(bits({8, 4}), 1)},
       by_second,
       moves},
      {"columns_by_a_whole_mask", {sharded(d({8, 3, 2}), 0), constant(bits({3, 2}))}, by_second},
      {"by_a_mask_of_another_cut_dim",
       {sharded(d({9, 4, 3}), 2), constant(bits({9, 4, 3}), 2)},
       by_mask,
       moves},
      {"by_a_mask_of_bytes",
       {sharded(d({9, 4}), 0), constant(bits({9, 4}).to(at::kByte), 0)},
       by_mask},
      {"by_a_mask_and_a_list",
       {sharded(d({9, 3, 4}), 2), constant(torch::tensor({1, 0, 1, 0, 0, 1, 0, 0, 0}, at::kBool))},
       [](const Tensors& t) {
         return at::index(t[0], {t[1], torch::tensor({2, 0, 1}, at::kLong)}).square();
       },
       moves},
      {"by_two_masks_of_which_one_is_over_the_cut_dim",
       {sharded(d({9, 3, 4}), 0),
        constant(torch::tensor({1, 0, 1, 0, 0, 0, 0, 0, 0}, at::kBool), 0),
        constant(torch::tensor({1, 0, 1}, at::kBool))},
       [](const Tensors& t) {
         return at::index(t[0], {t[1], t[2]}).square();
       },
       all_of_it},
      {"a_number_by_a_mask",
       {sharded(d({9, 4}), 0), constant(bits({9, 4}), 0), weight(d({}))},
       put},
      {"values_by_a_mask",
       {sharded(d({9, 4}), 0), weight(d({9}))},
       [=](const Tensors& t) { return at::index_put(t[0], {first_of_each_row}, t[1]).square(); }},
      {"cut_values_by_a_mask",
       {sharded(d({9, 4}), 0), sharded(d({9}), 0)},
       [=](const Tensors& t) { return at::index_put(t[0], {first_of_each_row}, t[1]).square(); }},
      {"values_by_a_mask_of_another_cut_dim",
       {sharded(d({9, 4}), 1), sharded(d({9}), 0)},
       [=](const Tensors& t) { return at::index_put(t[0], {first_of_each_row}, t[1]).square(); },
       all_of_it},
      {"values_that_it_has_by_a_mask",
       {sharded(d({9, 4}), 0), constant(bits({9}), 0)},
       [](const Tensors& t) {
         return at::index_put(t[0], {t[1]}, at::index(t[0], {t[1]}).exp()).square();
       }},
      {"rows_into_a_mask", {sharded(d({9, 4}), 0), constant(bits({9}), 0), weight(d({4}))}, put},
      {"values_for_columns_cut_otherwise",
       {sharded(d({3, 8}), 1), sharded(d({3, 4}), 0)},
       [](const Tensors& t) {
         const auto mask = torch::tensor({1, 0, 0, 1, 0, 0, 1, 1}, at::kBool);
         return at::index_put(t[0], {at::Tensor(), mask}, t[1]).square();
       },
       all_of_it},
      {"added_by_a_mask",
       {sharded(d({9, 4}), 0), constant(bits({9}), 0), weight(d({4}))},
       [](const Tensors& t) {
         return at::index_put(t[0], {t[1]}, t[2], /*accumulate=*/true).square();
       }},
      {"put_in_place_by_a_mask",
       {sharded(d({9, 4}), 0), weight(d({9}))},
       [=](const Tensors& t) {
         at::Tensor x = t[0] * 1;
         x.index_put_({first_of_each_row}, t[1]);
         return x.square();
       }},
      {"put_in_place_by_its_own_values",
       {sharded(d({9, 4}), 1)},
       [](const Tensors& t) {
         at::Tensor x = t[0] * 1;
         x.index_put_({x.detach() > 0}, torch::zeros({}, at::kDouble));
         return x.square() + x;
       },
       all_of_it},
      {"put_in_place_into_a_view_by_a_mask",
       {sharded(d({9, 4}), 0)},
       [](const Tensors& t) {
         at::Tensor x = t[0] * 1;
         at::Tensor part = x.narrow(1, 0, 3);
         const at::Tensor mask = part.detach() > -1;
         part.index_put_({mask}, at::index(part, {mask}).exp());
         return x.square();
       }},
      {"put_by_a_mask_over_all_but_the_cut_dim",
       {sharded(d({3, 8}), 1), sharded(d({2, 8}), 1)},
       [](const Tensors& t) {
         const auto mask = torch::tensor({1, 0, 1}, at::kBool);
         return at::index_put(t[0], {mask}, t[1]).square();
       }},
  };
}
SHARD_SAMPLES(MaskIndexing, masks());

TEST(MaskIndexingErrors, AreTheSameOnAllRanks) {
  run_ranks(3, [](World& world) {
    at::Tensor x = shard::zeros({9, 2}, world.mesh(), {Shard(0)});
    const at::Tensor mask = x.select(1, 0) == 0;
    EXPECT_THROW(at::index(x, {torch::ones({8}, at::kBool)}), SpecMismatch);
    EXPECT_THROW(x.index_put_({mask}, torch::ones({2, 2})), SpecMismatch);  // 9 rows are picked
    EXPECT_THROW(x.index_put_({mask}, torch::ones({9, 3})), SpecMismatch);
  });
}

}  // namespace
}  // namespace shard::testing
