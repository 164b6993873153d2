// SPDX-License-Identifier: Apache-2.0
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor d(const std::vector<int64_t>& sizes) { return torch::randn(sizes, at::kDouble); }
Input numbers(int64_t rows, const std::vector<int64_t>& sizes, int64_t dim = -1) {
  return constant(torch::randint(0, rows, sizes), dim);
}
/// One number a row, as graph libraries spread it over the features.
Tensor over_features(const Tensor& list, const Tensor& features) {
  return list.unsqueeze(1).expand({-1, features.size(1)});
}

std::vector<Sample> elements() {
  torch::manual_seed(200);
  const auto gather = [](int64_t dim) {
    return [dim](const Tensors& t) { return t[0].gather(dim, t[1]).square(); };
  };
  const auto x = [] { return d({2, 8, 6}); };
  return {
      {"gather_along_another_dim", {sharded(x(), 1), numbers(6, {2, 8, 3}, 1)}, gather(2)},
      {"gather_along_the_sharded_dim", {sharded(x(), 1), numbers(8, {2, 5, 6}, 0)}, gather(1)},
      {"gather_from_a_whole_tensor", {weight(d({5, 3})), numbers(5, {9, 3}, 0)}, gather(0)},
      {"gather_of_one_dim", {sharded(d({11}), 0), numbers(11, {17}, 0)}, gather(0)},
      {"gather_elements_of_few_columns",
       {sharded(d({11, 2}), 0), numbers(11, {7, 2}, 0)},
       gather(0)},
      {"gather_elements_of_some_columns",
       {sharded(d({2, 11}).t(), 0), numbers(11, {7, 1})},
       gather(0)},
      {"gather_elements_of_two_dims_that_are_small",
       {sharded(d({2, 13, 3}), 1), numbers(13, {2, 5, 3}, 2)},
       gather(1)},
      {"gather_one_element", {sharded(d({11}), 0), numbers(11, {})}, gather(0)},
      {"gather_nothing", {sharded(d({11}), 0), numbers(11, {0})}, gather(0)},
      {"scatter_add_of_few_columns",
       {sharded(d({11, 2}), 0), numbers(11, {7, 2}, 0), sharded(d({7, 2}), 0)},
       [](const Tensors& t) { return t[0].scatter_add(0, t[1], t[2]).square(); }},
      {"scatter_add_of_few_columns_in_place",
       {sharded(d({2, 11}).t(), 0), numbers(11, {7, 2}, 0), sharded(d({7, 2}), 1)},
       [](const Tensors& t) { return (t[0] * 1).scatter_add_(0, t[1], t[2]).square(); }},
      {"gather_of_one_number",
       {sharded(d({11}), 0), numbers(11, {1})},
       [](const Tensors& t) { return t[0].gather(0, t[1]).squeeze_(0).square(); }},
      {"gather_of_nothing",
       {sharded(d({11}), 0)},
       [](const Tensors& t) { return t[0].gather(0, torch::empty({0}, at::kByte)).square(); }},
      {"scatter_add_along_the_sharded_dim",
       {sharded(x(), 1), numbers(8, {2, 8, 6}, 1), sharded(x(), 1)},
       [](const Tensors& t) { return t[0].scatter_add(1, t[1], t[2]).square(); }},
      {"scatter_largest_along_another_dim",
       {sharded(d({7, 4}), 0), numbers(4, {7, 5}, 0), sharded(d({7, 5}), 0)},
       [](const Tensors& t) { return t[0].scatter_reduce(1, t[1], t[2], "amax").square(); }},
      {"scatter_a_value",
       {sharded(d({7, 4}).t(), 1), numbers(4, {2, 7}, 1)},
       [](const Tensors& t) { return t[0].scatter(0, t[1], 1.5).square(); }},
  };
}
SHARD_SAMPLES(ScatteredElements,
              with_traffic(elements(), {{"gather_along_the_sharded_dim", 2.25},
                                        {"gather_from_a_whole_tensor", 2.25},
                                        {"gather_of_one_dim", 6},
                                        {"scatter_add_of_few_columns", 6},
                                        {"scatter_add_of_few_columns_in_place", 6},
                                        {"gather_elements_of_few_columns", 6},
                                        {"gather_elements_of_some_columns", 6},
                                        {"gather_elements_of_two_dims_that_are_small", 6},
                                        {"scatter_add_along_the_sharded_dim", 6}}));

// ---- one number a row

using Write = std::function<Tensor(const Tensors&)>;

Sample rows(const std::string& name, const Write& f, bool is_sum = true) {
  Sample sample{name,
                {sharded(d({9, 3}), 0), numbers(9, {23}, 0), sharded(d({23, 3}), 0)},
                f,
                Check{.traffic = 6}};
  if (!is_sum) {
    sample.check.holds_whole = "values for one row meet at its owner, and all are for a few rows";
  }
  return sample;
}
Sample reduced(const std::string& how, bool include_self) {
  return rows(
      how + (include_self ? "_with_self" : "_of_values"),
      [=](const Tensors& t) {
        const Tensor index = over_features(t[1], t[2]);
        return t[0].scatter_reduce(0, index, t[2], how, include_self).square();
      },
      false);
}

std::vector<Sample> row_samples() {
  torch::manual_seed(201);
  auto list = std::vector<Sample>{
      rows("sum",
           [](const Tensors& t) {
             return t[0].scatter_add(0, over_features(t[1], t[2]), t[2]).square();
           }),
      rows("sum_in_place",
           [](const Tensors& t) {
             const Tensor sums = torch::zeros_like(t[0]);
             sums.scatter_add_(0, over_features(t[1], t[2]), t[2]);
             return sums.square() + t[0];
           }),
      rows("gathered",
           [](const Tensors& t) {
             return t[0].gather(0, over_features(t[1], t[0])).square() * t[2];
           }),
      reduced("sum", false),
      reduced("mean", true),
      reduced("amax", false),
      reduced("amin", true),
      reduced("prod", true),
  };
  Sample copied = rows(
      "copied",
      [](const Tensors& t) { return t[0].scatter(0, over_features(t[1], t[2]), t[2]).square(); },
      false);
  copied.inputs[1] = constant(torch::randperm(9).narrow(0, 0, 7), 0);
  copied.inputs[2] = sharded(d({7, 3}), 0);
  list.push_back(copied);
  list.push_back({"sum_of_one_dim",
                  {sharded(d({9}), 0), numbers(9, {23}, 0), sharded(d({23}), 0)},
                  [](const Tensors& t) { return t[0].scatter_add(0, t[1], t[2]).square(); },
                  Check{.traffic = 6}});
  return list;
}
SHARD_SAMPLES(ScatteredRows, row_samples());

/// An index with fewer rows than self along the cut dim: they lie where self's first rows lie.
std::vector<Sample> shorter_samples() {
  torch::manual_seed(132);
  const at::Tensor index = torch::randint(0, 6, {5, 4}, at::kLong);
  const Check once{.both_precisions = false};
  const auto of = [&](const std::string& name,
                      const std::function<at::Tensor(const Tensors&, const at::Tensor&)>& f) {
    return Sample{
        name,
        {sharded(torch::randn({8, 6}, at::kDouble), 0),
         constant(torch::randn({7, 5}, at::kDouble), 0)},  // LibTorch has no gradient of it
        [=](const Tensors& t) { return f(t, index).square(); },
        once};
  };
  std::vector<Sample> list{
      of("gather", [](const Tensors& t, const at::Tensor& i) { return t[0].gather(1, i); }),
      of("scatter", [](const Tensors& t, const at::Tensor& i) { return t[0].scatter(1, i, 2.5); }),
      of("scatter_add",
         [](const Tensors& t, const at::Tensor& i) { return t[0].scatter_add(1, i, t[1]); }),
      of("scatter_reduce",
         [](const Tensors& t, const at::Tensor& i) {
           return t[0].scatter_reduce(1, i, t[1], "amax");
         }),
  };
  list.back().check.gradients = list.back().check.double_backward = false;  // LibTorch has none
  return list;
}
SHARD_SAMPLES(ShorterIndex, with_traffic(shorter_samples(), {{"scatter_add", 8},
                                                             {"scatter_reduce", 8},
                                                             {"gather", 8},
                                                             {"scatter", 8}}));

/// Elements along any dim of any tensor.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 7);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t along = r.integer(0, last);
  auto picked = sizes;
  picked[static_cast<size_t>(along)] = r.integer(1, 6);
  const int64_t rows = sizes[static_cast<size_t>(along)];
  const Input input = sharded(r.tensor(sizes), r.integer(0, last));
  const at::Tensor index = (r.tensor(picked).abs() * 100).to(at::kLong).remainder(rows);
  Check check;
  if (along == input.shard_dim) check.traffic = 2.25;
  if (input.whole.numel() == rows) {
    check.traffic = 12;
    check.holds_whole = "there is no other dim to cut";
  }
  return {"random",
          {input, constant(index, along == input.shard_dim ? -1 : input.shard_dim)},
          [=](const Tensors& t) { return t[0].gather(along, t[1]).square(); },
          check};
}
SHARD_RANDOM_SAMPLES(RandomGather, random_sample);

/// index_reduce, by which rows travel, has fewer kernels than scatter_reduce.
TEST(ScatterReduce, OfTypesThatIndexReduceLacks) {
  const Tensor places = torch::tensor({3, 0, 3, 2});
  const Tensor flags = torch::tensor({true, false, false, true});
  const Tensor numbers = torch::tensor({0.5, 1.5, 2., 3.}).to(at::kBFloat16);
  run_ranks(3, [&](World& world) {
    const auto cut = [&](const Tensor& t) {
      return scatter_tensor(t, 0, world.mesh(), {Shard(0)}, {0, 3, 1});
    };
    for (const char* how : {"prod", "amax", "amin"}) {
      for (const Tensor& t : {flags, numbers}) {
        const Tensor got = cut(t).scatter_reduce(0, cut(places), cut(t), how);
        const Tensor expected = t.scatter_reduce(0, places, t, how);
        EXPECT_TRUE(torch::equal(ShardTensor(got).full(), expected)) << how << " of " << t.dtype();
      }
    }
  });
}

}  // namespace
}  // namespace shard::testing
