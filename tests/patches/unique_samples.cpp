// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

const Check kNumbers{.gradients = false, .double_backward = false};

/// All three results in one list: `which` of them is compared.
template <class Call>
Function result(int which, Call call) {
  return [=](const Tensors& t) {
    const auto [values, inverse, counts] = call(t[0]);
    return (which == 0 ? values : which == 1 ? inverse : counts).to(at::kDouble);
  };
}

std::tuple<Tensor, Tensor, Tensor> unique(const Tensor& x) {
  return at::_unique2(x, true, true, true);
}
std::tuple<Tensor, Tensor, Tensor> runs(const Tensor& x) {
  return at::unique_consecutive(x, true, true);
}
auto unique_along(int64_t dim) {
  return [dim](const Tensor& x) { return at::unique_dim(x, dim, true, true, true); };
}
auto runs_along(int64_t dim) {
  return [dim](const Tensor& x) { return at::unique_consecutive(x, true, true, dim); };
}

Tensor few(std::vector<int64_t> sizes, int64_t values = 5) {
  return torch::randint(-2, values - 2, sizes).to(at::kDouble);
}
Tensor nans(Tensor x) { return at::where(x == 0, torch::full({}, NAN, at::kDouble), x); }

template <class Call>
void add(std::vector<Sample>& all, const std::string& name, const Tensor& x, int64_t dim, Call call,
         double traffic) {
  Check check = kNumbers;
  check.traffic = traffic;
  for (const int which : {0, 1, 2}) {
    const char* const results[] = {"values", "inverse", "counts"};
    all.push_back({name + "_" + results[which], {sharded(x, dim)}, result(which, call), check});
  }
}

std::vector<Sample> samples() {
  torch::manual_seed(410);
  std::vector<Sample> all;
  add(all, "unique", few({9, 4}), 0, unique, 1);
  add(all, "unique_of_another_cut_dim", few({9, 4}, 30), 1, unique, 1);
  add(all, "all_are_unique", torch::randn({9, 4}, at::kDouble), 0, unique, 4);
  add(all, "unique_rows", few({11, 2}), 0, unique_along(0), 2);
  add(all, "unique_rows_cut_otherwise", few({29, 3}, 3), 1, unique_along(0), 4);
  add(all, "unique_columns", few({2, 11}), 1, unique_along(1), 2);
  add(all, "unique_slices", few({3, 9, 2}, 3), 1, unique_along(1), 2);
  add(all, "unique_along_a_list", few({13}), 0, unique_along(0), 2);
  add(all, "runs", few({9, 4}, 3), 0, runs, 1);
  add(all, "one_run", few({9, 4}, 1), 0, runs, 1);
  add(all, "runs_over_ranks", torch::arange(4, at::kDouble).repeat_interleave(4), 0, runs, 1);
  add(all, "runs_of_another_cut_dim", few({9, 4}, 3), 1, runs, 4);
  add(all, "runs_of_rows", few({11, 2}, 2), 0, runs_along(0), 2);
  add(all, "runs_of_columns", few({2, 11}, 2), 1, runs_along(1), 2);
  add(all, "runs_of_rows_cut_otherwise", few({29, 3}, 2), 1, runs_along(0), 4);
  add(all, "runs_along_a_list", few({13}, 2), 0, runs_along(0), 2);
  return all;
}
SHARD_SAMPLES(Unique, samples());

std::vector<Sample> kinds() {
  torch::manual_seed(411);
  const auto values = [](const Tensors& t) {
    return std::get<0>(at::_unique2(t[0], false)).to(at::kDouble);
  };
  Check once = kNumbers;
  once.traffic = 8;
  once.both_precisions = false;
  return {
      {"numbers", {constant(torch::randint(0, 9, {5, 8}), 1)}, values, once},
      {"truths", {constant(torch::rand({5, 8}) > 0.5, 0)}, values, once},
      {"bytes", {constant(torch::randint(0, 9, {13}).to(at::kByte), 0)}, values, once},
      {"the_older_op",
       {constant(torch::randint(0, 9, {5, 8}), 1)},
       [](const Tensors& t) { return std::get<1>(at::_unique(t[0], true, true)).to(at::kDouble); },
       once},
      {"runs_along_a_dim",
       {constant(torch::randint(0, 2, {13, 2}), 0)},
       [](const Tensors& t) {
         return std::get<2>(at::unique_dim_consecutive(t[0], 0, false, true)).to(at::kDouble);
       },
       once},
      {"how_many_nans",
       {sharded(nans(few({13})), 0)},
       [](const Tensors& t) {
         return std::get<0>(at::_unique2(t[0])).isnan().sum().to(at::kDouble);
       },
       once},
      {"nothing",
       {sharded(few({9, 4}), 0)},
       [](const Tensors& t) { return std::get<0>(at::_unique2(t[0].narrow(1, 0, 0))); },
       once},
  };
}
SHARD_SAMPLES(UniqueKinds, kinds());

Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 3), 1, 6);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const Tensor x = (r.tensor(sizes) * r.integer(1, 3)).round();
  const int64_t dim = r.integer(0, last);
  const auto which = static_cast<int>(r.integer(0, 2));
  const int64_t kind = r.integer(0, 3);
  Check check = kNumbers;
  check.traffic = 100;
  check.holds_whole = "samples of a few values are";
  return {"random",
          {sharded(x, r.integer(0, last))},
          kind == 0   ? result(which, unique)
          : kind == 1 ? result(which, unique_along(dim))
          : kind == 2 ? result(which, runs)
                      : result(which, runs_along(dim)),
          check};
}
SHARD_RANDOM_SAMPLES(RandomUnique, random_sample);

}  // namespace
}  // namespace shard::testing
