// SPDX-License-Identifier: Apache-2.0
// What LibTorch does not accept raises here as well, on every rank, also where the op is done in
// parts that each would be accepted.
#include <gtest/gtest.h>
#include <shard/shard.h>
#include <torch/types.h>

namespace shard::testing {
namespace {

using at::Tensor;

struct Case {
  std::string name;
  std::function<void(const Tensor&)> call;  ///< with a tensor of [7, 4]
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

bool raises(const Case& c, const Tensor& x) {
  try {
    c.call(x);
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}

class BadArguments : public ::testing::TestWithParam<Case> {};

TEST_P(BadArguments, RaiseOnEveryRank) {
  const auto plain = torch::arange(28, at::kDouble).view({7, 4});
  EXPECT_TRUE(raises(GetParam(), plain)) << "of a plain tensor";
  for (const int64_t dim : {0, 1}) {
    run_ranks(3, [&](World& world) {
      const auto n = plain.size(dim);
      const auto x = scatter_tensor(plain, 0, world.mesh(), {Shard(dim)}, {n - 1, 0, 1});
      EXPECT_TRUE(raises(GetParam(), x)) << "rank " << world.rank() << ", cut along dim " << dim;
      EXPECT_EQ((x * 0 + 1).sum().item<double>(), 28);
    });
  }
}

std::vector<Case> cases() {
  const auto integers = [](const Tensor& x) { return x.to(at::kLong); };
  return {
      {"slice_step", [](const Tensor& x) { x.slice(0, 0, 4, 0); }},
      {"slice_copy_step", [](const Tensor& x) { at::slice_copy(x, 0, 0, 4, 0); }},
      {"slice_scatter_step",
       [](const Tensor& x) { at::slice_scatter(x, x.slice(0, 0, 4), 0, 0, 4, 0); }},
      {"split_sizes",
       [](const Tensor& x) {
         x.split_with_sizes({3, 3}, 0);
       }},
      {"split_sizes_of_columns",
       [](const Tensor& x) {
         x.split_with_sizes({3, 3}, 1);
       }},
      {"split_of_nothing", [](const Tensor& x) { x.split(0, 0); }},
      {"negative_split", [](const Tensor& x) { x.split(-1, 0); }},
      {"narrow", [](const Tensor& x) { x.narrow(0, 5, 10); }},
      {"narrow_copy", [](const Tensor& x) { at::narrow_copy(x, 0, 5, 10); }},
      {"narrow_copy_before", [](const Tensor& x) { at::narrow_copy(x, 0, -9, 2); }},
      {"select", [](const Tensor& x) { x.select(0, 7); }},
      {"select_scatter", [](const Tensor& x) { at::select_scatter(x, x.select(0, 1), 0, 9); }},
      {"repeat",
       [](const Tensor& x) {
         x.repeat({-1, 1});
       }},
      {"repeat_of_too_few", [](const Tensor& x) { x.repeat({2}); }},
      {"expand",
       [](const Tensor& x) {
         x.expand({9, 4});
       }},
      {"permute_twice",
       [](const Tensor& x) {
         x.permute({0, 0});
       }},
      {"squeeze_out_of_range", [](const Tensor& x) { x.squeeze(3); }},
      {"view",
       [](const Tensor& x) {
         x.view({5, 5});
       }},
      {"unfold", [](const Tensor& x) { x.unfold(0, 8, 1); }},
      {"unfold_step", [](const Tensor& x) { x.unfold(0, 2, 0); }},
      {"mm_of_a_vector", [](const Tensor& x) { at::mm(x, x.select(0, 1)); }},
      {"mm_of_other_sizes", [](const Tensor& x) { at::mm(x, x); }},
      {"bmm_of_matrices", [](const Tensor& x) { at::bmm(x.unsqueeze(0), x.t()); }},
      {"bmm_of_another_batch",
       [](const Tensor& x) {
         at::bmm(x.unsqueeze(0), at::stack({x.t(), x.t()}));
       }},
      {"mv_of_a_matrix", [](const Tensor& x) { at::mv(x, x.t()); }},
      {"dot_of_matrices", [](const Tensor& x) { at::dot(x, x); }},
      {"addmm_of_a_larger_addend",
       [](const Tensor& x) {
         at::addmm(x.unsqueeze(0).expand({2, 7, 4}), x, x.t().mm(x));
       }},
      {"addr_of_a_larger_addend",
       [](const Tensor& x) {
         at::addr(x.unsqueeze(0).expand({2, 7, 4}), x.select(1, 0), x.select(0, 0));
       }},
      {"addbmm_of_a_larger_addend",
       [](const Tensor& x) {
         at::addbmm(x.unsqueeze(0).expand({2, 7, 4}), x.unsqueeze(0), x.t().mm(x).unsqueeze(0));
       }},
      {"addmm_of_three_dims",
       [](const Tensor& x) { at::addmm(x.select(0, 0), x.unsqueeze(0), x.t().mm(x)); }},
      {"bincount", [=](const Tensor& x) { at::bincount(integers(x).select(1, 0), {}, -1); }},
      {"bincount_of_matrices", [=](const Tensor& x) { at::bincount(integers(x)); }},
      {"one_hot_of_numbers_below_zero", [=](const Tensor& x) { at::one_hot(integers(x) - 5); }},
      {"one_hot_of_too_few_classes", [=](const Tensor& x) { at::one_hot(integers(x), 9); }},
      {"one_hot_of_floats", [](const Tensor& x) { at::one_hot(x); }},
      {"cat",
       [](const Tensor& x) {
         at::cat({x, x.t()}, 0);
       }},
      {"stack",
       [](const Tensor& x) {
         at::stack({x, x.slice(0, 1)});
       }},
      {"index_select", [=](const Tensor& x) { x.index_select(0, integers(x).select(1, 0)); }},
      {"gather_of_more_columns",
       [=](const Tensor& x) {
         x.gather(0, integers(x).repeat({1, 2}) * 0);
       }},
      {"gather_by_floats", [](const Tensor& x) { x.gather(0, x * 0); }},
      {"scatter_by_floats", [](const Tensor& x) { x.scatter_add(0, x * 0, x); }},
      {"index_by_floats", [](const Tensor& x) { x.index({torch::tensor({1.5})}); }},
      {"rows_by_floats", [](const Tensor& x) { x.index_select(0, torch::tensor({1.5})); }},
      {"rows_added_by_floats",
       [](const Tensor& x) { x.index_add(0, torch::tensor({1.5}), x.slice(0, 0, 1)); }},
      {"take_by_floats", [](const Tensor& x) { x.take(torch::tensor({1.5})); }},
      {"put_before_the_first", [](const Tensor& x) { x.put(torch::tensor({-29}), x.view(-1)[0]); }},
      {"put_behind_the_last", [](const Tensor& x) { x.put(torch::tensor({28}), x.view(-1)[0]); }},
      {"put_of_more", [](const Tensor& x) { x.put(torch::tensor({2}), x.select(0, 0)); }},
      {"searchsorted_by_a_sorter_of_ints",
       [](const Tensor& x) {
         const Tensor row = x.select(1, 0);
         at::searchsorted(row, 2.5, false, false, {}, row.to(at::kInt));
       }},
      {"gather_of_three_dims", [=](const Tensor& x) { x.gather(0, integers(x).unsqueeze(0) * 0); }},
      {"scatter_of_more_rows_than_the_source",
       [=](const Tensor& x) { x.scatter(1, integers(x) * 0, x.slice(0, 1)); }},
      {"scatter_of_a_source_of_three_dims",
       [=](const Tensor& x) { x.scatter_add(0, integers(x) * 0, x.unsqueeze(0)); }},
      {"vdot_of_matrices", [](const Tensor& x) { at::vdot(x, x); }},
      {"masked_fill_by_many", [](const Tensor& x) { x.masked_fill(x > 1, x.select(0, 0)); }},
      {"chunk_cat",
       [](const Tensor& x) {
         at::_chunk_cat({x, x}, 0, 0);
       }},
      {"roll",
       [](const Tensor& x) {
         x.roll({1, 2}, {0});
       }},
      {"flip_twice",
       [](const Tensor& x) {
         x.flip({0, 0});
       }},
      {"topk", [](const Tensor& x) { x.topk(9, 0); }},
      {"topk_of_a_line", [](const Tensor& x) { x.select(1, 0).topk(9); }},
      {"kthvalue", [](const Tensor& x) { x.kthvalue(0, 0); }},
      {"kthvalue_of_a_line", [](const Tensor& x) { x.select(1, 0).kthvalue(8); }},
      {"sum_of_a_dim_twice",
       [](const Tensor& x) {
         x.sum(std::vector<int64_t>{0, 0});
       }},
      {"softmax", [](const Tensor& x) { x.softmax(5); }},
      {"diagonal", [](const Tensor& x) { x.diagonal(0, 1, 1); }},
      {"masked_select", [=](const Tensor& x) { x.masked_select(integers(x)); }},
      {"where_of_other_sizes", [](const Tensor& x) { at::where(x > 1, x, x.t()); }},
      {"add_of_other_sizes", [](const Tensor& x) { x + x.t(); }},
      {"add_in_place_of_a_larger",
       [](const Tensor& x) {
         x.add_(x.unsqueeze(0).repeat({2, 1, 1}));
       }},
      {"pad",
       [](const Tensor& x) {
         at::constant_pad_nd(x, {0, 0, -9, 0});
       }},
      {"normal", [](const Tensor& x) { x.clone().normal_(0, -1); }},
      {"bernoulli", [](const Tensor& x) { x.clone().bernoulli_(2.); }},
      {"uniform", [](const Tensor& x) { x.clone().uniform_(2, 1); }},
  };
}

INSTANTIATE_TEST_SUITE_P(All, BadArguments, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// A call that was wrong does not become right by being made again.
TEST(BadArguments, OfACallThatWasAllowedBefore) {
  run_ranks(3, [](World& world) {
    auto x = scatter_tensor(torch::zeros({4, 2}), 0, world.mesh(), {Shard(0)}, {3, 0, 1});
    x.bernoulli_(0.5);
    EXPECT_ANY_THROW(x.bernoulli_(2.));
    EXPECT_EQ((x * 0 + 1).sum().item<double>(), 8);
  });
}

}  // namespace
}  // namespace shard::testing
