// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

namespace F = torch::nn::functional;
using Tensors = std::vector<at::Tensor>;

at::Tensor x() { return torch::randn({2, 8, 3}); }
at::Tensor probabilities() { return torch::rand({2, 8, 3}) * 0.9 + 0.05; }

using Loss = std::function<at::Tensor(const Tensors&, int64_t reduction)>;

/// One case a reduction.
void add(std::vector<Sample>& cases, const std::string& name, std::vector<Input> inputs,
         const Loss& loss, Check check = {.ranks = {2, 3}}) {
  const std::pair<const char*, int64_t> reductions[] = {
      {"_none", at::Reduction::None}, {"_mean", at::Reduction::Mean}, {"_sum", at::Reduction::Sum}};
  for (const auto& [suffix, reduction] : reductions) {
    cases.push_back({name + suffix, inputs,
                     [loss, reduction = reduction](const Tensors& t) { return loss(t, reduction); },
                     check});
  }
}

std::vector<Sample> elementwise_cases() {
  torch::manual_seed(30);
  std::vector<Sample> cases;
  add(cases, "mse_loss", {sharded(x(), 1), sharded(x(), 1)},
      [](const Tensors& t, int64_t r) { return at::mse_loss(t[0], t[1], r); }, {});
  add(cases, "mse_loss_of_a_plain_target", {sharded(x(), 1), weight(x())},
      [](const Tensors& t, int64_t r) { return at::mse_loss(t[0], t[1], r); });
  add(cases, "mse_loss_of_other_shards",
      {sharded(torch::randn({8, 8}, at::kDouble), 0),
       sharded(torch::randn({8, 8}, at::kDouble), 1)},
      [](const Tensors& t, int64_t r) { return at::mse_loss(t[0], t[1], r); });
  add(cases, "l1_loss", {sharded(x(), 1), sharded(x(), 1)},
      [](const Tensors& t, int64_t r) { return at::l1_loss(t[0], t[1], r); });
  add(cases, "smooth_l1_loss", {sharded(x(), 1), sharded(x(), 1)},
      [](const Tensors& t, int64_t r) { return at::smooth_l1_loss(t[0], t[1], r, 0.5); });
  add(cases, "huber_loss", {sharded(x(), 1), sharded(x(), 1)},
      [](const Tensors& t, int64_t r) { return at::huber_loss(t[0], t[1], r, 0.7); });
  add(cases, "soft_margin_loss", {sharded(x(), 1), constant(x().sign(), 1)},
      [](const Tensors& t, int64_t r) { return at::soft_margin_loss(t[0], t[1], r); });
  add(cases, "binary_cross_entropy",
      {sharded(probabilities(), 1), constant(probabilities(), 1), constant(torch::rand({3}))},
      [](const Tensors& t, int64_t r) { return at::binary_cross_entropy(t[0], t[1], t[2], r); });
  add(cases, "binary_cross_entropy_with_logits",
      {sharded(x(), 1), constant(probabilities(), 1), constant(torch::rand({8, 1})),
       constant(torch::rand({3}) + 0.5)},
      [](const Tensors& t, int64_t r) {
        return at::binary_cross_entropy_with_logits(t[0], t[1], t[2], t[3], r);
      });
  add(cases, "kl_div", {sharded(x(), 1), constant(probabilities(), 1)},
      [](const Tensors& t, int64_t r) { return at::kl_div(t[0], t[1], r); });
  add(cases, "kl_div_of_a_log_target", {sharded(x(), 1), sharded(x(), 1)},
      [](const Tensors& t, int64_t r) { return at::kl_div(t[0], t[1], r, true); });
  add(cases, "poisson_nll_loss", {sharded(x(), 1), constant(probabilities(), 1)},
      [](const Tensors& t, int64_t r) {
        return at::poisson_nll_loss(t[0], t[1], true, true, 1e-8, r);
      });
  add(cases, "hinge_embedding_loss", {sharded(x(), 1), constant(x().sign(), 1)},
      [](const Tensors& t, int64_t r) { return at::hinge_embedding_loss(t[0], t[1], 1.0, r); });
  add(cases, "margin_ranking_loss", {sharded(x(), 1), sharded(x(), 1), constant(x().sign(), 1)},
      [](const Tensors& t, int64_t r) {
        return at::margin_ranking_loss(t[0], t[1], t[2], 0.1, r);
      });
  add(cases, "triplet_margin_loss",
      {sharded(torch::randn({8, 3}), 0), sharded(torch::randn({8, 3}), 0),
       sharded(torch::randn({8, 3}), 0)},
      [](const Tensors& t, int64_t r) {
        return at::triplet_margin_loss(t[0], t[1], t[2], 1, 2, 1e-6, false, r);
      });
  add(cases, "cosine_embedding_loss",
      {sharded(torch::randn({8, 3}), 0), sharded(torch::randn({8, 3}), 0),
       constant(torch::randn({8}).sign(), 0)},
      [](const Tensors& t, int64_t r) {
        return at::cosine_embedding_loss(t[0], t[1], t[2], 0.1, r);
      });
  return cases;
}

// ---- classification: points on dim 0, or images with classes on dim 1

at::Tensor classes(std::vector<int64_t> sizes) { return torch::randint(0, 4, sizes); }
at::Tensor some_ignored(std::vector<int64_t> sizes) {
  auto t = classes(sizes);
  t.view(-1).slice(0, 0, t.numel(), 3).fill_(-100);
  return t;
}

Loss cross_entropy(double smoothing = 0, bool weighted = false) {
  return [=](const Tensors& t, int64_t r) {
    return at::cross_entropy_loss(t[0], t[1], weighted ? t[2] : at::Tensor(), r, -100, smoothing);
  };
}

std::vector<Sample> classification_cases() {
  torch::manual_seed(31);
  std::vector<Sample> cases;
  const auto points = [] { return sharded(torch::randn({8, 4}), 0); };
  const auto image = [] { return sharded(torch::randn({2, 4, 8, 3}), 2); };
  const auto weights = constant(torch::rand({4}) + 0.5);
  add(cases, "cross_entropy_of_points", {points(), constant(classes({8}), 0)}, cross_entropy(), {});
  add(cases, "cross_entropy_of_points_with_weights", {points(), constant(classes({8}), 0), weights},
      cross_entropy(0, true));
  add(cases, "cross_entropy_of_points_some_ignored", {points(), constant(some_ignored({8}), 0)},
      cross_entropy());
  add(cases, "cross_entropy_of_points_some_ignored_with_weights",
      {points(), constant(some_ignored({8}), 0), weights}, cross_entropy(0, true));
  add(cases, "cross_entropy_of_points_smoothed", {points(), constant(classes({8}), 0)},
      cross_entropy(0.2));
  add(cases, "cross_entropy_of_points_smoothed_with_weights",
      {points(), constant(some_ignored({8}), 0), weights}, cross_entropy(0.2, true));
  add(cases, "cross_entropy_of_points_with_probabilities",
      {points(), sharded(torch::rand({8, 4}), 0), weights}, cross_entropy(0.1, true));
  add(cases, "cross_entropy_of_an_image", {image(), constant(classes({2, 8, 3}), 1)},
      cross_entropy());
  add(cases, "cross_entropy_of_an_image_with_weights",
      {image(), constant(some_ignored({2, 8, 3}), 1), weights}, cross_entropy(0, true));
  add(cases, "cross_entropy_of_an_image_smoothed",
      {image(), constant(some_ignored({2, 8, 3}), 1), weights}, cross_entropy(0.2, true));
  add(cases, "cross_entropy_of_an_image_with_probabilities",
      {image(), sharded(torch::rand({2, 4, 8, 3}), 2)}, cross_entropy());
  add(cases, "cross_entropy_of_plain_targets", {image(), constant(classes({2, 8, 3}))},
      cross_entropy());
  add(cases, "cross_entropy_with_sharded_classes",
      {sharded(torch::randn({3, 8}), 1), constant(classes({3}))}, cross_entropy());
  add(cases, "nll_loss_of_points", {points(), constant(some_ignored({8}), 0), weights},
      [](const Tensors& t, int64_t r) { return at::nll_loss_nd(t[0], t[1], t[2], r); });
  return cases;
}

// ---- what the C++ front end composes

std::vector<Sample> composed_cases() {
  torch::manual_seed(32);
  const Check check{.ranks = {2, 3}};
  return {
      {"mse_loss_module",
       {sharded(x(), 1), sharded(x(), 1)},
       [](const Tensors& t) { return torch::nn::MSELoss()->forward(t[0], t[1]); },
       check},
      {"smooth_l1_loss_module",
       {sharded(x(), 1), sharded(x(), 1)},
       [](const Tensors& t) { return torch::nn::SmoothL1Loss()->forward(t[0], t[1]); },
       check},
      {"cross_entropy_module",
       {sharded(torch::randn({8, 4}), 0), constant(classes({8}), 0)},
       [](const Tensors& t) { return torch::nn::CrossEntropyLoss()->forward(t[0], t[1]); },
       check},
      {"kl_div_module_batchmean",
       {sharded(x(), 1), constant(probabilities(), 1)},
       [](const Tensors& t) {
         return F::kl_div(t[0], t[1], F::KLDivFuncOptions().reduction(torch::kBatchMean));
       },
       check},
      {"multilabel_soft_margin_loss",
       {sharded(torch::randn({8, 4}), 0), constant(torch::randint(0, 2, {8, 4}).to(at::kFloat), 0)},
       [](const Tensors& t) { return torch::nn::MultiLabelSoftMarginLoss()->forward(t[0], t[1]); },
       check},
      {"cosine_similarity",
       {sharded(x(), 1), sharded(x(), 1)},
       [](const Tensors& t) { return at::cosine_similarity(t[0], t[1], 2); },
       check},
      {"cosine_similarity_over_the_sharded_dim",
       {sharded(x(), 1), sharded(x(), 1)},
       [](const Tensors& t) { return at::cosine_similarity(t[0], t[1], 1); },
       check},
      {"pairwise_distance",
       {sharded(torch::randn({8, 3}, at::kDouble), 0),
        sharded(torch::randn({8, 3}, at::kDouble), 0)},
       [](const Tensors& t) { return at::pairwise_distance(t[0], t[1]); },
       check},
      {"gaussian_nll_loss",
       {sharded(x(), 1), sharded(x(), 1), sharded(probabilities(), 1)},
       [](const Tensors& t) {
         const auto var = t[2].clamp_min(1e-6);
         return (0.5 * (var.log() + (t[0] - t[1]).pow(2) / var)).mean();
       },
       check},
      {"mean_of_absolute_differences_by_hand",
       {sharded(x(), 1), sharded(x(), 1)},
       [](const Tensors& t) { return (t[0] - t[1]).abs().sum() / t[0].numel(); },
       check},
      {"relative_error_of_every_sample",
       {sharded(x(), 1), constant(x(), 1)},
       [](const Tensors& t) {
         return ((t[0] - t[1]).flatten(1).norm(2, 1) / t[1].flatten(1).norm(2, 1)).mean();
       },
       check},
  };
}

SHARD_SAMPLES(ElementwiseLosses, elementwise_cases());
SHARD_SAMPLES(ClassificationLosses,
              with_traffic(classification_cases(),
                           {{"cross_entropy_with_sharded_classes_none", 1.5},
                            {"cross_entropy_with_sharded_classes_mean", 1.5},
                            {"cross_entropy_with_sharded_classes_sum", 1.5}}));
SHARD_SAMPLES(ComposedLosses, composed_cases());

/// Any reduction of any loss between tensors that may lie differently.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 7);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t reduction = r.integer(0, 2);
  const int64_t kind = r.integer(0, 3);
  const Input target =
      r.coin() ? sharded(r.tensor(sizes), r.integer(0, last)) : weight(r.tensor(sizes));
  return {"random",
          {sharded(r.tensor(sizes), r.integer(0, last)), target},
          [=](const Tensors& t) {
            if (kind == 0) return at::mse_loss(t[0], t[1], reduction);
            if (kind == 1) return at::smooth_l1_loss(t[0], t[1], reduction, 0.7);
            if (kind == 2) return at::huber_loss(t[0], t[1], reduction, 0.7);
            return at::binary_cross_entropy_with_logits(t[0], t[1].sigmoid(), {}, {}, reduction);
          },
          kind == 2 ? Check{.double_backward = false} : Check{}};
}
SHARD_RANDOM_SAMPLES(RandomLosses, random_sample);

TEST(ElementwiseLosses, SendNothingWhenShardsAreAlike) {
  run_ranks(2, [](World& world) {
    auto a = scatter_tensor(x(), 0, world.mesh(), {Shard(1)}).set_requires_grad(true);
    const auto b = scatter_tensor(x(), 0, world.mesh(), {Shard(1)});
    const CommCounter counter;
    at::mse_loss(a, b).backward();
    EXPECT_EQ(counter.calls(), 0) << counter.table();
  });
}

TEST(ElementwiseLosses, GradientOfAMeanIsNotMultipliedByRanks) {
  run_ranks(4, [](World& world) {
    auto a = scatter_tensor(torch::ones({8}), 0, world.mesh(), {Shard(0)}).set_requires_grad(true);
    at::mse_loss(a, torch::zeros({8})).backward();
    EXPECT_TRUE(ShardTensor(a.grad()).full().eq(0.25).all().item<bool>());
  });
}

}  // namespace
}  // namespace shard::testing
