// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor d(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); }

/// Output and updated running statistics of a training step, in one tensor.
Tensor with_running(const Tensor& x, const Tensor& w, const Tensor& b) {
  auto mean = torch::full({x.size(1)}, 0.5, x.options());
  auto var = torch::full({x.size(1)}, 2.0, x.options());
  const Tensor y = at::batch_norm(x, w, b, mean, var, true, 0.3, 1e-5, false);
  std::vector<int64_t> sizes(static_cast<size_t>(x.dim()), 1);
  sizes[1] = x.size(1);
  return y + mean.view(sizes) * var.view(sizes);
}

Sample training(const std::string& name, std::vector<int64_t> sizes, int64_t dim) {
  const int64_t channels = sizes[1];
  return {name,
          {sharded(d(std::move(sizes)), dim), weight(d({channels})), weight(d({channels}))},
          [](const Tensors& t) { return with_running(t[0], t[1], t[2]); }};
}

/// The op below: results, statistics and updated running statistics in one tensor.
Sample training_below(const std::string& name, std::vector<int64_t> sizes, int64_t dim) {
  const int64_t channels = sizes[1];
  return {name,
          {sharded(d(std::move(sizes)), dim), weight(d({channels})), weight(d({channels}))},
          [](const Tensors& t) {
            TORCH_CHECK(t[0].size(1) == t[1].size(0));  // channels cannot be enlarged
            auto running_mean = torch::full({t[0].size(1)}, 0.5, torch::kDouble);
            auto running_var = torch::full({t[0].size(1)}, 2.0, torch::kDouble);
            running_mean = running_mean.to(t[0].scalar_type());
            running_var = running_var.to(t[0].scalar_type());
            const auto [y, mean, inverse] = at::_native_batch_norm_legit(
                t[0], t[1], t[2], running_mean, running_var, true, 0.3, 1e-5);
            std::vector<int64_t> shape(static_cast<size_t>(t[0].dim()), 1);
            shape[1] = -1;
            return y * mean.view(shape) + inverse.view(shape) +
                   (running_mean * running_var).view(shape);
          }};
}

std::vector<Sample> cases() {
  torch::manual_seed(90);
  return {
      training("cut_in_space", {2, 3, 8, 5}, 2),
      training("cut_in_the_batch", {8, 3, 4, 5}, 0),
      training("cut_in_the_channels", {3, 8, 4, 5}, 1),
      training("of_points", {8, 3}, 0),
      training("of_signals", {2, 3, 9}, 2),
      training("of_volumes", {2, 3, 8, 3, 2}, 2),
      training_below("with_statistics", {2, 3, 8, 5}, 2),
      training_below("with_statistics_of_cut_channels", {3, 8, 4}, 1),
      training_below("with_statistics_of_a_cut_batch", {8, 3, 4}, 0),
      {"with_statistics_of_the_batch_alone",
       {sharded(d({3, 8, 4}), 2), weight(d({8})), weight(d({8}))},
       [](const Tensors& t) {
         const auto [y, mean, inverse] =
             at::_native_batch_norm_legit(t[0], t[1], t[2], true, 0.1, 1e-5);
         return y * mean.view({-1, 1}) + inverse.view({-1, 1});
       }},
      {"with_given_statistics_below",
       {sharded(d({2, 3, 8, 5}), 2), weight(d({3})), weight(d({3})), constant(d({3})),
        constant(d({3}).abs() + 0.1)},
       [](const Tensors& t) {
         const auto [y, mean, inverse] =
             at::native_batch_norm(t[0], t[1], t[2], t[3], t[4], false, 0.1, 1e-5);
         return y + mean.sum() + inverse.sum();
       }},
      {"without_weights",
       {sharded(d({2, 3, 8, 5}), 2)},
       [](const Tensors& t) {
         return at::batch_norm(t[0], {}, {}, {}, {}, true, 0.1, 1e-3, false);
       }},
      {"with_given_statistics",
       {sharded(d({2, 3, 8, 5}), 2), weight(d({3})), weight(d({3})), constant(d({3})),
        constant(d({3}).abs() + 0.1)},
       [](const Tensors& t) {
         return at::batch_norm(t[0], t[1], t[2], t[3], t[4], false, 0.1, 1e-5, false);
       }},
      {"with_given_statistics_cut_in_the_channels",
       {sharded(d({2, 8, 3}), 1), weight(d({8})), weight(d({8})), constant(d({8})),
        constant(d({8}).abs() + 0.1)},
       [](const Tensors& t) {
         return at::batch_norm(t[0], t[1], t[2], t[3], t[4], false, 0.1, 1e-5, false);
       }},
      {"module_in_single_precision",
       {sharded(torch::randn({2, 4, 8, 5}) * 3 + 1, 2)},
       [](const Tensors& t) {
         torch::nn::BatchNorm2d norm(4);
         return norm->forward(t[0]);
       },
       Check{.tolerance = 2e-5, .both_precisions = false}},
      {"instance_norm",
       {sharded(d({2, 3, 8, 5}), 2), weight(d({3})), weight(d({3}))},
       [](const Tensors& t) {
         return at::instance_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false);
       }},
      {"instance_norm_cut_in_the_batch",
       {sharded(d({8, 3, 4, 5}), 0)},
       [](const Tensors& t) {
         return at::instance_norm(t[0], {}, {}, {}, {}, true, 0.1, 1e-5, false);
       }},
  };
}
SHARD_SAMPLES(BatchNorm, cases());

/// Batch or instance norm of 2 to 5 dims, with and without weights.
Sample random_sample(Random& r) {
  auto sizes = r.sizes(r.integer(3, 5), 1, 7);
  sizes[0] = r.integer(2, 4);
  sizes[2] = r.integer(3, 9);
  const int64_t dim = r.integer(0, static_cast<int64_t>(sizes.size()) - 1);
  const bool instance = r.coin();
  std::vector<Input> inputs{sharded(r.tensor(sizes), dim)};
  const bool has_weights = r.coin();
  if (has_weights) inputs.push_back(weight(r.tensor({sizes[1]})));
  if (has_weights) inputs.push_back(weight(r.tensor({sizes[1]})));
  const Function function = [=](const Tensors& t) {
    const Tensor w = has_weights ? t[1] : Tensor();
    const Tensor b = has_weights ? t[2] : Tensor();
    if (instance) return at::instance_norm(t[0], w, b, {}, {}, true, 0.1, 1e-2, false);
    return at::batch_norm(t[0], w, b, {}, {}, true, 0.1, 1e-2, false);
  };
  return {"random", inputs, function};
}
SHARD_RANDOM_SAMPLES(RandomBatchNorm, random_sample);

TEST(BatchNormalization, RunningStatisticsAreBitwiseEqualOnAllRanks) {
  run_ranks(3, [](World& world) {
    torch::nn::BatchNorm2d norm(3);
    const auto x =
        scatter_tensor(d({2, 3, 8, 5}).to(at::kFloat), 0, world.mesh(), {Shard(2)}, {5, 0, 3});
    norm->forward(x);
    const auto all = from_local(norm->running_var.unsqueeze(0), world.mesh(), {Shard(0)});
    const Tensor rows = ShardTensor(all).full();
    EXPECT_TRUE(torch::equal(rows[0], rows[1]));
    EXPECT_TRUE(torch::equal(rows[0], rows[2]));
  });
}

TEST(BatchNormalization, OfCutChannelsSendsRunningStatisticsOnly) {
  run_ranks(3, [](World& world) {
    const Tensor whole = d({4, 5, 8, 6});
    torch::nn::BatchNorm2d want(5), norm(5);
    want->to(at::kDouble);
    norm->to(at::kDouble);
    const auto x = scatter_tensor(whole, 0, world.mesh(), {Shard(1)}, {1, 0, 4});
    const CommCounter counter;
    const Tensor y = norm->forward(x);
    EXPECT_LE(counter.bytes(), 2 * 2 * 5 * 8) << counter.table();
    EXPECT_LE(relative_error(ShardTensor(y.detach()).full(), want->forward(whole)), 1e-13);
    EXPECT_LE(relative_error(norm->running_mean, want->running_mean), 1e-13);
    EXPECT_LE(relative_error(norm->running_var, want->running_var), 1e-13);
    norm->eval();
    want->eval();
    const CommCounter given;
    EXPECT_LE(relative_error(ShardTensor(norm->forward(x).detach()).full(), want->forward(whole)),
              1e-13);
    EXPECT_EQ(given.calls("all_reduce") + given.calls("exchange"), 0) << given.table();
  });
}

TEST(BatchNormalization, OfChannelsAndRowsThatAreBothCut) {
  run_ranks(4, [](World& world) {
    const Tensor whole = d({2, 5, 8, 6});
    const auto mesh = world.mesh({{"a", 2}, {"b", 2}});
    for (const auto& channels : {Partition{2, 3}, Partition{5, 0}}) {
      torch::nn::BatchNorm2d want(5), norm(5);
      want->to(at::kDouble);
      norm->to(at::kDouble);
      const auto x = scatter_tensor(whole, 0, mesh, {Shard(1), Shard(2)}, {channels, {7, 1}});
      const Tensor y = norm->forward(x);
      y.square().sum().backward();
      want->forward(whole).square().sum().backward();
      EXPECT_LE(relative_error(ShardTensor(y.detach()).full(), want->forward(whole)), 1e-12);
      EXPECT_LE(relative_error(norm->weight.grad(), want->weight.grad()), 1e-12);
      EXPECT_EQ(ShardTensor(y).placements(), (Placements{Shard(1), Shard(2)}));
    }
  });
}

TEST(BatchNormalization, IsStableAroundALargeMean) {
  run_ranks(2, [](World& world) {
    const Tensor whole = torch::randn({4, 3, 32, 8}) + 1e4;
    const Tensor want =
        at::batch_norm(whole.to(at::kDouble), {}, {}, {}, {}, true, 0.1, 1e-5, false);
    const auto x = scatter_tensor(whole, 0, world.mesh(), {Shard(2)});
    const auto y = at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false);
    EXPECT_LE(relative_error(ShardTensor(y).full().to(at::kDouble), want), 1e-5);
  });
}

TEST(BatchNormalization, RefusesStatisticsThatDoNotFitOnEveryRank) {
  run_ranks(2, [](World& world) {
    const auto x = scatter_tensor(d({2, 3, 8, 5}), 0, world.mesh(), {Shard(2)});
    EXPECT_THROW(at::batch_norm(x, d({4}), {}, {}, {}, true, 0.1, 1e-5, false), SpecMismatch);
    const auto one = scatter_tensor(d({1, 3}), 0, world.mesh(), {Shard(0)});
    EXPECT_THROW(at::batch_norm(one, {}, {}, {}, {}, true, 0.1, 1e-5, false), SpecMismatch);
  });
}

}  // namespace
}  // namespace shard::testing
