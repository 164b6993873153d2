// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor x() { return torch::randn({2, 3, 8, 2}); }
at::Tensor with_zeros(std::vector<int64_t> rows) {
  auto t = torch::rand({2, 8}) + 0.5;
  for (const int64_t row : rows) t.select(1, row).zero_();
  return t;
}

std::vector<Sample> sum_cases() {
  torch::manual_seed(7);
  return {
      {"sum_of_everything", {sharded(x(), 2)}, [](const Tensors& t) { return t[0].sum(); }},
      {"mean_of_everything", {sharded(x(), 2)}, [](const Tensors& t) { return t[0].mean(); }},
      {"mean_over_the_sharded_dim",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].mean(2); }},
      {"mean_before_the_shard_keeping_the_dim",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].mean(1, true); }},
      {"mean_before_the_shard", {sharded(x(), 2)}, [](const Tensors& t) { return t[0].mean(1); }},
      {"sum_before_the_shard", {sharded(x(), 2)}, [](const Tensors& t) { return t[0].sum(1); }},
      {"sum_over_the_sharded_and_other_dims",
       {sharded(x(), 2)},
       [](const Tensors& t) {
         return t[0].sum({0, 2, -1});
       }},
      {"sum_behind_the_shard_keeping_the_dim",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].sum(3, true); }},
      {"sum_with_another_dtype",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].sum(2, false, at::kDouble); },
       Check{.tolerance = 1e-5}},
      {"mean_with_another_dtype",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].mean(at::kDouble); },
       Check{.tolerance = 1e-5}},
      {"mean_of_integers_as_floats",
       {constant(torch::arange(16).view({2, 8}), 1)},
       [](const Tensors& t) { return t[0].mean(1, false, at::kFloat); }},
      {"sum_of_booleans",
       {constant(torch::rand({2, 8}) > 0.5, 1)},
       [](const Tensors& t) { return t[0].sum(); }},
      {"mean_in_double_precision",
       {sharded(x().to(at::kDouble), 2)},
       [](const Tensors& t) { return t[0].mean(); }},
      {"sum_of_a_sum", {sharded(x(), 2)}, [](const Tensors& t) { return t[0].sum(2).sum(1); }},
      {"mean_of_squares",
       {sharded(x(), 2), sharded(x(), 2)},
       [](const Tensors& t) { return (t[0] - t[1]).pow(2).mean(); }},
      {"pending_sum_plus_a_number",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].sum() + 10; }},
      {"number_minus_a_pending_sum",
       {sharded(x(), 2)},
       [](const Tensors& t) { return 10 - t[0].sum(); }},
      {"pending_sum_plus_a_plain_scalar_tensor",
       {sharded(x(), 2)},
       [](const Tensors& t) { return torch::tensor(10.f) + t[0].sum() + torch::tensor(1.f); }},
      {"pending_sum_times_and_over_numbers",
       {sharded(x(), 2)},
       [](const Tensors& t) { return -5 * t[0].sum(2) / 3; }},
      {"product_of_pending_sums",
       {sharded(x(), 2), sharded(x(), 2)},
       [](const Tensors& t) { return t[0].sum(2) * t[1].sum(2); }},
      {"difference_of_pending_sums",
       {sharded(x(), 2), sharded(x(), 2)},
       [](const Tensors& t) { return t[0].sum(2) - t[1].mean(2); }},
      {"pending_sum_times_a_sharded_tensor",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0] * t[0].sum(2, true); }},
      {"square_root_of_a_pending_sum",
       {sharded(x().abs() + 1, 2)},
       [](const Tensors& t) { return t[0].sum(2).sqrt(); }},
      {"sum_of_a_0d_tensor", {sharded(x(), 2)}, [](const Tensors& t) { return t[0].sum().sum(); }},
  };
}

std::vector<Sample> product_cases() {
  torch::manual_seed(8);
  const auto over_dim = [](const Tensors& t) { return t[0].prod(1); };
  const auto over_all = [](const Tensors& t) { return t[0].prod(); };
  return {
      {"prod_over_the_sharded_dim", {sharded(with_zeros({}), 1)}, over_dim},
      {"prod_with_one_zero", {sharded(with_zeros({3}), 1)}, over_dim},
      {"prod_with_zeros_on_two_ranks", {sharded(with_zeros({0, 7}), 1)}, over_dim},
      {"prod_with_two_zeros_on_one_rank", {sharded(with_zeros({0, 1}), 1)}, over_dim},
      {"prod_of_everything", {sharded(with_zeros({}), 1)}, over_all},
      {"prod_of_everything_with_a_zero",
       {sharded(torch::cat({torch::rand({1, 7}) + 0.5, torch::zeros({1, 1})}, 1), 1)},
       over_all},
      {"prod_over_an_unsharded_dim",
       {sharded(with_zeros({3}), 1)},
       [](const Tensors& t) { return t[0].prod(0, true); }},
      {"prod_of_integers", {constant(torch::randint(1, 4, {2, 8}), 1)}, over_dim},
      {"prod_in_double_precision", {sharded(with_zeros({}).to(at::kDouble), 1)}, over_dim},
  };
}

SHARD_SAMPLES(Sums, sum_cases());
SHARD_SAMPLES(ElementProducts, product_cases());

/// Sums and means over any one or two dims.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 8);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  std::vector<int64_t> over{r.integer(0, last)};
  if (last > 0 && r.coin()) over.push_back((over[0] + 1) % (last + 1));
  const bool keeps = r.coin();
  const bool averages = r.coin();
  return {"random", {sharded(r.tensor(sizes), r.integer(0, last))}, [=](const Tensors& t) {
            return averages ? t[0].mean(over, keeps).square() : t[0].sum(over, keeps).square();
          }};
}
SHARD_RANDOM_SAMPLES(RandomReductions, random_sample);

TEST(Sums, MeanCountsElementsNotRanks) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](World& world) {
      for (const int64_t rows : {3, 1}) {
        const auto whole = torch::arange(rows * 4, torch::kFloat).view({rows, 4});
        auto t = scatter_tensor(whole, 0, world.mesh(), {Shard(0)}).set_requires_grad(true);
        const auto mean = t.mean();
        EXPECT_EQ(mean.item<double>(), rows == 3 ? 5.5 : 1.5);
        mean.backward();
        const auto gradient = ShardTensor(t.grad()).full();
        EXPECT_TRUE(gradient.eq(1.f / static_cast<float>(rows * 4)).all().item<bool>());
      }
    });
  }
}

TEST(Sums, ANumberIsAddedOnceNotOncePerRank) {
  run_ranks(2, [](World& world) {
    const auto sum = scatter_tensor(torch::arange(10.), 0, world.mesh(), {Shard(0)}).sum();
    EXPECT_EQ((sum + 10).item<double>(), 55);
    EXPECT_EQ((10 + sum).item<double>(), 55);
    EXPECT_EQ((sum + torch::tensor(10.)).item<double>(), 55);
    EXPECT_EQ((torch::tensor(10.) + sum).item<double>(), 55);
  });
}

TEST(Sums, ScaledInALoopGiveNewValues) {
  run_ranks(2, [](World& world) {
    const auto x = scatter_tensor(torch::arange(10.), 0, world.mesh(), {Shard(0)});
    for (const int i : {1, 2, 3}) EXPECT_EQ((i * x.sum()).item<double>(), i * 45);
    EXPECT_EQ((-5 * x).sum().item<double>(), -225);
    EXPECT_EQ((2 * x).sum().item<double>(), 90);
  });
}

TEST(Sums, ArePendingAgainAfterAnInPlaceOpThatNeededTheValue) {
  run_ranks(2, [](World& world) {
    auto pending = from_local(torch::full({1}, 72.), world.mesh(), {Partial()});
    pending.clamp_(0, 2);
    EXPECT_TRUE(ShardTensor(pending).spec().is_partial());
    EXPECT_EQ(pending.item<double>(), 2);
  });
}

TEST(Sums, SendNothingUntilTheValueIsUsed) {
  run_ranks(3, [](World& world) {
    const auto x = scatter_tensor(torch::randn({7, 2}), 0, world.mesh(), {Shard(0)});
    const CommCounter counter;
    const auto sum = x.sum(0) * 2 + x.mean(0);
    EXPECT_EQ(counter.calls(), 0);
    ShardTensor(sum).full();
    EXPECT_EQ(counter.calls("all_reduce"), 1);
    EXPECT_EQ(counter.calls(), 1);
  });
}

}  // namespace
}  // namespace shard::testing
