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

const Check kPlaces{.gradients = false, .double_backward = false};

Tensor d(const std::vector<int64_t>& sizes) { return torch::randn(sizes, at::kDouble); }
Tensor bits(const std::vector<int64_t>& sizes) { return torch::rand(sizes) > 0.4; }

std::vector<Sample> places() {
  torch::manual_seed(400);
  const auto nonzero = [](const Tensors& t) { return t[0].relu().nonzero().to(at::kDouble); };
  return {
      {"nonzero", {sharded(d({9, 4, 3}), 0)}, nonzero, kPlaces},
      {"nonzero_of_another_cut_dim", {sharded(d({9, 4, 3}), 1)}, nonzero, kPlaces},
      {"nonzero_behind_dims_of_one", {sharded(d({1, 1, 9, 2}), 2)}, nonzero, kPlaces},
      {"nonzero_of_few_rows", {sharded(d({2, 9, 5}), 1)}, nonzero, kPlaces},
      {"nonzero_of_a_list", {sharded(d({13}), 0)}, nonzero, kPlaces},
      {"nonzero_of_a_transposed_tensor",
       {sharded(d({4, 9}), 0)},
       [](const Tensors& t) { return t[0].t().relu().nonzero().to(at::kDouble); },
       kPlaces},
      {"nothing_is_nonzero",
       {sharded(d({9, 4}), 0)},
       [](const Tensors& t) { return (t[0] * 0).nonzero().to(at::kDouble); },
       kPlaces},
      {"nonzero_in_one_row",
       {sharded(torch::cat({d({1, 3}), torch::zeros({8, 3}, at::kDouble)}), 0)},
       nonzero,
       kPlaces},
      {"argwhere",
       {sharded(d({5, 8}), 1)},
       [](const Tensors& t) { return torch::argwhere(t[0] > 0).to(at::kDouble); },
       kPlaces},
      {"where_of_one_argument",
       {sharded(d({9, 4}), 0)},
       [](const Tensors& t) { return torch::where(t[0] > 0)[1].to(at::kDouble); },
       kPlaces},
      {"rows_of_places",
       {sharded(d({9, 4}), 0)},
       [](const Tensors& t) {
         const auto at = (t[0] > 0).nonzero_numpy();
         return (at[0] * 4 + at[1]).to(at::kDouble);
       },
       kPlaces},
  };
}
SHARD_SAMPLES(Places, with_traffic(places(), {{"nonzero_of_another_cut_dim", 3},
                                              {"nonzero_of_few_rows", 3},
                                              {"nonzero_of_a_transposed_tensor", 3},
                                              {"argwhere", 1}}));

Tensor selected(const Tensors& t) { return t[0].masked_select(t[1]).square(); }
Tensor scattered(const Tensors& t) { return t[0].masked_scatter(t[1], t[2]).square(); }

std::vector<Sample> samples() {
  torch::manual_seed(401);
  const Check moves{.traffic = 3};
  return {
      {"masked_select", {sharded(d({9, 4}), 0), constant(bits({9, 4}), 0)}, selected},
      {"masked_select_by_its_own_values",
       {sharded(d({9, 4}), 0)},
       [](const Tensors& t) { return t[0].masked_select(t[0] > 0).square(); }},
      {"masked_select_of_another_cut_dim",
       {sharded(d({9, 4, 3}), 1), constant(bits({9, 4, 3}), 1)},
       selected,
       moves},
      {"masked_select_by_a_whole_mask", {sharded(d({9, 4}), 0), constant(bits({4}))}, selected},
      {"masked_select_by_a_mask_that_is_cut_otherwise",
       {sharded(d({9, 4}), 0), constant(bits({9, 4}), 1)},
       selected,
       moves},
      {"masked_select_of_a_whole_tensor",
       {weight(d({9, 4})), constant(bits({9, 4}), 0)},
       selected,
       moves},
      {"masked_select_that_broadcasts_the_tensor",
       {sharded(d({1, 8}), 1), constant(bits({5, 1}))},
       selected,
       Check{.traffic = 8, .holds_whole = "it is repeated for every row of the mask"}},
      {"masked_select_of_a_list_by_a_column",
       {sharded(d({8}), 0), constant(bits({5, 1}), 0)},
       [](const Tensors& t) {
         TORCH_CHECK(t[1].size(0) < 100);  // enlarged, the product is all there is to measure
         return selected(t);
       },
       Check{.traffic = 8, .holds_whole = "it is repeated for every row of the mask"}},
      {"masked_select_of_nothing",
       {sharded(d({9, 4}), 0)},
       [](const Tensors& t) { return t[0].masked_select(t[0] > 100).sum() + t[0].square().sum(); }},
      {"masked_scatter",
       {sharded(d({9, 4}), 0), constant(bits({9, 4}), 0), weight(d({6, 6}))},
       scattered},
      {"masked_scatter_of_a_cut_list",
       {sharded(d({9, 4}), 0), constant(bits({9, 4}), 0), sharded(d({40}), 0)},
       scattered,
       moves},
      {"masked_scatter_of_a_cut_matrix",
       {sharded(d({9, 4}), 0), constant(bits({9, 4}), 0), sharded(d({4, 9}), 1)},
       scattered,
       moves},
      {"masked_scatter_along_another_cut_dim",
       {sharded(d({9, 4}), 1), constant(bits({9, 4}), 1), sharded(d({9, 4}), 1)},
       scattered,
       Check{.traffic = 6}},
      {"masked_scatter_into_a_repeated_list",
       {sharded(d({4}), 0), constant(bits({9, 4}), 0), sharded(d({36}), 0)},
       scattered,
       Check{.traffic = 8, .holds_whole = "the list is repeated"}},
      {"masked_scatter_in_place",
       {sharded(d({9, 4}), 0), weight(d({40}))},
       [](const Tensors& t) {
         Tensor x = t[0] * 1;
         x.masked_scatter_(t[0] > 0, t[1]);
         return x.square();
       }},
      {"masked_scatter_in_place_along_another_cut_dim",
       {sharded(d({9, 4}), 1), weight(d({4}))},
       [](const Tensors& t) {
         Tensor x = t[0] * 1;
         x.masked_scatter_(torch::tensor({1, 0, 0, 0}, at::kBool).expand({9, 4}), t[1].repeat({9}));
         return x.square();
       },
       Check{.traffic = 6}},
      {"masked_scatter_of_one_number",
       {sharded(d({9, 1}), 0), weight(d({}))},
       [](const Tensors& t) {
         return t[0].masked_scatter(t[0].detach() == t[0].detach().max(), t[1]).square();
       }},
      {"combinations",
       {sharded(d({7}), 0)},
       [](const Tensors& t) {
         TORCH_CHECK(t[0].size(0) < 100);
         return torch::combinations(t[0], 2).square();
       },
       Check{.traffic = 1000, .holds_whole = "LibTorch's mask of all pairs is"}},
  };
}
SHARD_SAMPLES(Masks, samples());

Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 6);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  auto mask_sizes = sizes;
  for (auto& size : mask_sizes) {
    if (r.integer(0, 4) == 0) size = 1;
  }
  const Tensor mask = r.tensor(mask_sizes) > 0;
  const Tensor source = r.tensor({c10::multiply_integers(sizes) + r.integer(0, 3)});
  const bool scatters = r.integer(0, 1) == 1;
  Check check{.traffic = 30};
  check.holds_whole = "small masks are repeated";
  return {"random",
          {sharded(r.tensor(sizes), r.integer(0, last)), constant(mask, r.integer(-1, last)),
           sharded(source, r.integer(-1, 0))},
          [=](const Tensors& t) {
            if (scatters) return scattered(t);
            return t[0].masked_select(t[1]).square() + t[2].square().sum();
          },
          check};
}
SHARD_RANDOM_SAMPLES(RandomMasks, random_sample);

TEST(MaskErrors, SourcesThatAreTooShort) {
  run_ranks(3, [](World& world) {
    const Tensor x = shard::zeros({9}, world.mesh(), {Shard(0)});
    EXPECT_THROW(x.masked_scatter(x == 0, torch::ones({2})), SpecMismatch);
  });
}

}  // namespace
}  // namespace shard::testing
