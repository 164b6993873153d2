// SPDX-License-Identifier: Apache-2.0
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

/// In double precision: rounding is not what the gradient penalties should differ by.
at::Tensor x() { return torch::randn({2, 8, 3}, at::kDouble); }
at::Tensor with_zero_rows() {
  auto t = x();
  t.select(2, 1).zero_();
  t.select(1, 2).zero_();
  return t;
}
Function vector_norm(double order, at::OptionalIntArrayRef dims, bool keepdim = false) {
  const std::optional<std::vector<int64_t>> owned =
      dims ? std::optional(dims->vec()) : std::nullopt;
  return [=](const Tensors& t) {
    return at::linalg_vector_norm(t[0], order,
                                  owned ? at::OptionalIntArrayRef(*owned) : std::nullopt, keepdim);
  };
}

const double kInfinity = std::numeric_limits<double>::infinity();

std::vector<Sample> cases() {
  torch::manual_seed(6);
  const Check once{.double_backward = false};
  return {
      {"norm_of_everything", {sharded(x(), 1)}, [](const Tensors& t) { return t[0].norm(); }},
      {"norm_over_the_sharded_dim",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].norm(2, 1); }},
      {"norm_over_an_unsharded_dim",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].norm(2, 2, true); }},
      {"one_norm_over_the_sharded_dim", {sharded(x(), 1)}, vector_norm(1, at::IntArrayRef{1})},
      {"three_norm_of_everything", {sharded(x(), 1)}, vector_norm(3, std::nullopt)},
      {"half_norm_over_the_sharded_dim",
       {sharded(x().abs() + 0.1, 1)},
       vector_norm(0.5, at::IntArrayRef{1})},
      {"infinity_norm_over_the_sharded_dim",
       {sharded(x(), 1)},
       vector_norm(kInfinity, at::IntArrayRef{1}, true)},
      {"minus_infinity_norm_of_everything",
       {sharded(x(), 1)},
       vector_norm(-kInfinity, std::nullopt)},
      {"zero_norm_counts", {constant(with_zero_rows(), 1)}, vector_norm(0, at::IntArrayRef{1})},
      {"negative_order", {sharded(x().abs() + 0.5, 1)}, vector_norm(-1, at::IntArrayRef{1})},
      {"norm_of_zero_vectors_has_gradient_zero",
       {sharded(with_zero_rows(), 1)},
       vector_norm(2, at::IntArrayRef{1}),
       once},
      {"norm_of_zero_vectors_over_an_unsharded_dim",
       {sharded(with_zero_rows(), 1)},
       vector_norm(2, at::IntArrayRef{2}),
       once},
      {"norm_with_another_dtype",
       {sharded(x().to(at::kFloat), 1)},
       [](const Tensors& t) { return t[0].norm(2, at::kDouble); },
       Check{.tolerance = 1e-5}},
      {"norm_over_two_dims", {sharded(x(), 1)}, vector_norm(2, at::IntArrayRef{0, 1})},
      {"norm_in_single_precision",
       {sharded(x().to(at::kFloat), 1)},
       [](const Tensors& t) { return t[0].norm(); }},
      {"linalg_norm", {sharded(x(), 1)}, [](const Tensors& t) { return at::linalg_norm(t[0]); }},
      {"frobenius_norm",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         return at::frobenius_norm(t[0], {0, 1});
       }},
      {"normalize",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         return torch::nn::functional::normalize(
             t[0], torch::nn::functional::NormalizeFuncOptions().dim(1));
       }},
      {"norm_of_a_pending_sum",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].sum(1).norm(); }},
      {"logsumexp_over_the_sharded_dim",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].logsumexp(1); }},
      {"logsumexp_keeping_the_dim",
       {sharded(x() * 50, 1)},
       [](const Tensors& t) {
         return t[0].logsumexp(at::IntArrayRef({0, 1}), true);
       }},
      {"logsumexp_over_an_unsharded_dim",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].logsumexp(-1); }},
      {"logsumexp_of_a_row_of_minus_infinities",
       {constant(torch::full({2, 8}, -kInfinity), 1)},
       [](const Tensors& t) { return t[0].logsumexp(1); }},
  };
}

SHARD_SAMPLES(Norms, cases());

/// Any order over any dim.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 7);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t over = r.integer(0, last);
  const double p = r.one_of<double>({1, 2, 3, 0.5});
  const bool keeps = r.coin();
  return {"random",
          {sharded(r.tensor(sizes).abs() + 0.1, r.integer(0, last))},
          [=](const std::vector<at::Tensor>& t) { return t[0].norm(p, {over}, keeps); }};
}
SHARD_RANDOM_SAMPLES(RandomNorms, random_sample);

TEST(Norms, OfContributionsIsTheNormOfTheirSum) {
  run_ranks(2, [](World& world) {
    const auto mine = world.rank() == 0 ? torch::tensor({1., 3.}) : torch::tensor({2., 1.});
    const auto x = from_local(mine, world.mesh(), {Partial()});
    EXPECT_EQ(x.norm().item<double>(), 5.0);
    EXPECT_EQ(at::linalg_vector_norm(x, kInfinity).item<double>(), 4.0);
  });
}

TEST(Norms, ItemIsTheGlobalValueOnEveryRank) {
  run_ranks(2, [](World& world) {
    const auto x = scatter_tensor(torch::ones({8, 8}), 0, world.mesh(), {Shard(0)});
    EXPECT_NEAR(x.norm().item<double>(), 8.0, 1e-6);
  });
}

/// By fused kernel the second derivative is wrong in LibTorch itself: it leaves out the norm's.
std::vector<Sample> weight_norm_cases() {
  torch::manual_seed(93);
  Check once;
  once.double_backward = false;
  const auto over = [](int64_t dim) {
    return [dim](const auto& t) {
      TORCH_CHECK(t[0].size(dim) == t[1].size(dim));  // LibTorch reads beyond the end
      return at::_weight_norm(t[0], t[1], dim);
    };
  };
  return {
      {"sharded_weight",
       {sharded(torch::randn({7, 4}), 0), weight(torch::randn({7, 1}))},
       over(0),
       once},
      {"across_the_shards",
       {sharded(torch::randn({7, 4}), 0), weight(torch::randn({1, 4}))},
       over(1),
       once},
  };
}
SHARD_SAMPLES(WeightNorm, weight_norm_cases());

}  // namespace
}  // namespace shard::testing
