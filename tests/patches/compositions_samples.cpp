// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor x() { return torch::randn({2, 8, 6}, at::kDouble); }
at::Tensor with_holes() {
  const at::Tensor t = x();
  t.select(1, 3).fill_(std::numeric_limits<double>::quiet_NaN());
  return t;
}
at::Tensor with_empty_rows() {
  const at::Tensor t = x();
  t.select(2, 1).fill_(-std::numeric_limits<double>::infinity());
  return t;
}
const Check kForward{.gradients = false, .double_backward = false};

Sample of(const std::string& name, const at::Tensor& whole,
          const std::function<at::Tensor(const at::Tensor&)>& f, Check check = {}) {
  return {name, {sharded(whole, 1)}, [f](const Tensors& t) { return f(t[0]); }, std::move(check)};
}

std::vector<Sample> sums() {
  torch::manual_seed(360);
  using at::Tensor;
  return {
      of("nansum", with_holes(), [](const Tensor& t) { return t.nansum().square(); }),
      of("nansum_over_the_cut_dim", with_holes(),
         [](const Tensor& t) { return t.nansum(1, true).square(); }),
      of(
          "count_nonzero", x().round(), [](const Tensor& t) { return t.count_nonzero(); },
          kForward),
      of(
          "count_nonzero_over_a_dim", x().round(),
          [](const Tensor& t) { return at::count_nonzero(t, std::optional<int64_t>(1)); },
          kForward),
      of(
          "count_nonzero_over_dims", x().round(),
          [](const Tensor& t) {
            return at::count_nonzero(t, at::IntArrayRef{0, 1});
          },
          kForward),
      of(
          "renorm", x(), [](const Tensor& t) { return t.renorm(2, 1, 2.5); },
          Check{.double_backward = false}),
      of(
          "renorm_along_another_dim", x(), [](const Tensor& t) { return t.renorm(3, 2, 1.5); },
          Check{.double_backward = false}),
      of(
          "safe_softmax", with_empty_rows(),
          [](const Tensor& t) { return at::_safe_softmax(t, 1).square(); },
          Check{.double_backward = false}),
      {"multi_margin_loss",
       {sharded(torch::randn({8, 5}, at::kDouble), 0)},
       [](const Tensors& t) {
         const auto target = torch::arange(t[0].size(0), at::kLong).remainder(5);
         return at::multi_margin_loss(t[0], target, 2, 0.7, torch::linspace(1, 2, 5, at::kDouble));
       },
       Check{.double_backward = false, .both_precisions = false}},
      {"multi_margin_losses_of_each_sample",
       {sharded(torch::randn({8, 5}, at::kDouble), 0)},
       [](const Tensors& t) {
         const auto target = torch::arange(t[0].size(0), at::kLong).remainder(5);
         return at::multi_margin_loss(t[0], target, 1, 1, {}, at::Reduction::None);
       },
       Check{.double_backward = false, .both_precisions = false}},
      of("masked_fill_by_a_tensor", x(),
         [](const Tensor& t) { return t.masked_fill(t > 0.5, t.mean()).square(); }),
  };
}
SHARD_SAMPLES(CompositionsOfSums, sums());

std::vector<Sample> copies() {
  torch::manual_seed(361);
  using at::Tensor;
  const Check moves{.traffic = 8};
  return {
      of(
          "repeat", x(),
          [](const Tensor& t) {
            return t.repeat({3, 1, 2}).square();
          },
          moves),
      of(
          "repeat_along_the_cut_dim", x(),
          [](const Tensor& t) {
            return t.repeat({2, 1, 2, 1}).square();
          },
          moves),
      of(
          "tile", x(),
          [](const Tensor& t) {
            return t.tile({2, 2}).square();
          },
          moves),
      of("repeat_to_nothing", x(),
         [](const Tensor& t) {
           return t.repeat({1, 0, 1}).square();
         }),
      {"block_diag",
       {sharded(torch::randn({8, 2}, at::kDouble), 0), weight(torch::randn({3, 4}, at::kDouble))},
       [](const Tensors& t) {
         return at::block_diag({t[0], t[1]}).square();
       },
       moves},
      {"slice_scatter",
       {sharded(x(), 1), weight(torch::randn({2, 3, 6}, at::kDouble))},
       [](const Tensors& t) { return at::slice_scatter(t[0], t[1], 1, 1, 7, 2).square(); }},
      {"select_scatter",
       {sharded(x(), 1), weight(torch::randn({2, 6}, at::kDouble))},
       [](const Tensors& t) { return at::select_scatter(t[0], t[1], 1, -2).square(); }},
      of(
          "chunk_cat", x(),
          [](const Tensor& t) {
            const Tensor other = t.slice(2, 0, 3);
            return at::_chunk_cat({t, other}, 0, 2);
          },
          Check{.gradients = false, .double_backward = false, .traffic = 8}),
      {"unsafe_masked_index",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         const auto rows = torch::tensor({0, 9, -4, 1}, at::kLong);
         const Tensor mask = rows.ge(0).logical_and(rows.lt(2)).unsqueeze(1).unsqueeze(1);
         return at::_unsafe_masked_index(t[0], mask, {rows}, 0.5).square();
       },
       Check{.both_precisions = false, .traffic = 8}},
  };
}
SHARD_SAMPLES(CompositionsOfCopies, copies());

Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 3), 1, 6);
  std::vector<int64_t> repeats;
  for (size_t i = 0; i < sizes.size(); ++i) repeats.push_back(r.integer(1, 3));
  const Input input =
      sharded(r.tensor(sizes), r.integer(0, static_cast<int64_t>(sizes.size()) - 1));
  const Function function = [repeats](const Tensors& t) { return t[0].repeat(repeats).square(); };
  return {"random", {input}, function, Check{.traffic = 12}};
}
SHARD_RANDOM_SAMPLES(RandomCompositions, random_sample);

}  // namespace
}  // namespace shard::testing
