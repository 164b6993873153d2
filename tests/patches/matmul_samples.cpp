// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor r(const std::vector<int64_t>& sizes, at::ScalarType dtype = at::kFloat) {
  return torch::randn(sizes, dtype);
}

at::Tensor product(const Tensors& t) { return at::matmul(t[0], t[1]); }

std::vector<Sample> product_cases() {
  torch::manual_seed(40);
  const Check few{.ranks = {1, 2, 3}};
  return {
      {"rows_times_a_weight", {sharded(r({8, 5}), 0), weight(r({5, 3}))}, product},
      {"a_weight_times_columns", {weight(r({3, 5})), sharded(r({5, 8}), 1)}, product},
      {"contracted_dim_sharded_on_both_sides",
       {sharded(r({3, 8}), 1), sharded(r({8, 4}), 0)},
       product},
      {"contracted_dim_sharded_on_the_left", {sharded(r({3, 8}), 1), weight(r({8, 4}))}, product},
      {"contracted_dim_sharded_on_the_right",
       {weight(r({3, 8})), sharded(r({8, 4}), 0)},
       product,
       few},
      {"rows_times_columns", {sharded(r({8, 5}), 0), sharded(r({5, 8}), 1)}, product},
      {"rows_times_contracted", {sharded(r({8, 8}), 0), sharded(r({8, 8}), 0)}, product, few},
      {"contracted_times_columns", {sharded(r({8, 8}), 1), sharded(r({8, 8}), 1)}, product, few},
      {"batch_sharded_on_both_sides",
       {sharded(r({8, 3, 4}), 0), sharded(r({8, 4, 2}), 0)},
       product},
      {"batch_sharded_on_one_side", {sharded(r({8, 3, 4}), 0), weight(r({8, 4, 2}))}, product, few},
      {"tokens_times_a_weight", {sharded(r({2, 8, 5}), 1), weight(r({5, 3}))}, product},
      {"broadcast_batch", {sharded(r({8, 1, 3, 4}), 0), weight(r({2, 4, 3}))}, product, few},
      {"broadcast_batch_sharded_on_the_right",
       {weight(r({3, 4})), sharded(r({8, 4, 2}), 0)},
       product,
       few},
      {"size_one_batch_against_a_sharded_one",
       {weight(r({1, 3, 4})), sharded(r({8, 4, 2}), 0)},
       product,
       few},
      {"attention_scores",
       {sharded(r({2, 8, 4}), 1), sharded(r({2, 8, 4}), 1)},
       [](const Tensors& t) { return at::matmul(t[0], t[1].transpose(1, 2)); }},
      {"matrix_times_vector", {sharded(r({8, 5}), 0), weight(r({5}))}, product, few},
      {"matrix_times_a_sharded_vector", {weight(r({3, 8})), sharded(r({8}), 0)}, product, few},
      {"vector_times_matrix", {sharded(r({8}), 0), sharded(r({8, 3}), 0)}, product, few},
      {"vector_times_a_column_shard", {weight(r({3})), sharded(r({3, 8}), 1)}, product, few},
      {"vector_times_vector", {sharded(r({8}), 0), sharded(r({8}), 0)}, product},
      {"vector_times_a_batch", {weight(r({4})), sharded(r({8, 4, 3}), 0)}, product, few},
      {"batch_times_a_vector", {sharded(r({8, 4, 3}), 0), weight(r({3}))}, product, few},
      {"in_double_precision",
       {sharded(r({2, 8, 5}, at::kDouble), 1), weight(r({5, 3}, at::kDouble))},
       product,
       few},
      {"of_integers",
       {constant(torch::randint(0, 9, {8, 3}), 0), constant(torch::randint(0, 9, {3, 2}))},
       product,
       few},
      {"of_pending_sums",
       {sharded(r({8, 3, 4}), 0), weight(r({4, 2}))},
       [](const Tensors& t) { return at::matmul(t[0].sum(0), t[1]); },
       few},
      {"einsum_of_one_sample",
       {sharded(r({1, 3, 8, 2}), 2), weight(r({4, 3}))},
       [](const Tensors& t) {
         return at::einsum("bchw,dc->bdhw", {t[0], t[1]});
       },
       few},
      {"outer_product",
       {sharded(r({8}), 0), weight(r({3}))},
       [](const Tensors& t) { return at::outer(t[0], t[1]); },
       few},
      {"weights_only_used_twice",
       {sharded(r({8, 3}), 0), weight(r({3, 3}))},
       [](const Tensors& t) { return at::matmul(at::matmul(t[0], t[1]).tanh(), t[1]); },
       few},
  };
}

std::vector<Sample> named_cases() {
  torch::manual_seed(41);
  const Check few{.ranks = {1, 2, 3}};
  return {
      {"mm",
       {sharded(r({8, 5}), 0), weight(r({5, 3}))},
       [](const Tensors& t) { return at::mm(t[0], t[1]); },
       few},
      {"bmm",
       {sharded(r({2, 8, 4}), 1), weight(r({2, 4, 3}))},
       [](const Tensors& t) { return at::bmm(t[0], t[1]); },
       few},
      {"mv",
       {sharded(r({8, 5}), 0), weight(r({5}))},
       [](const Tensors& t) { return at::mv(t[0], t[1]); },
       few},
      {"dot",
       {sharded(r({8}), 0), weight(r({8}))},
       [](const Tensors& t) { return at::dot(t[0], t[1]); },
       few},
      {"linear",
       {sharded(r({2, 8, 5}), 1), weight(r({3, 5})), weight(r({3}))},
       [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); }},
      {"linear_without_bias",
       {sharded(r({2, 8, 5}), 1), weight(r({3, 5}))},
       [](const Tensors& t) { return at::linear(t[0], t[1]); },
       few},
      {"linear_of_a_batch_shard",
       {sharded(r({8, 5}), 0), weight(r({3, 5})), weight(r({3}))},
       [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); },
       few},
      {"linear_of_sharded_features",
       {sharded(r({3, 8}), 1), weight(r({4, 8})), weight(r({4}))},
       [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); }},
      {"linear_of_one_vector",
       {sharded(r({8}), 0), weight(r({4, 8})), weight(r({4}))},
       [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); },
       few},
      {"addmm",
       {weight(r({3})), sharded(r({8, 5}), 0), weight(r({5, 3}))},
       [](const Tensors& t) { return at::addmm(t[0], t[1], t[2]); },
       few},
      {"addmm_with_beta_and_alpha",
       {weight(r({3})), sharded(r({8, 5}), 0), weight(r({5, 3}))},
       [](const Tensors& t) { return at::addmm(t[0], t[1], t[2], 0.5, -2); },
       few},
      {"addmm_of_a_matrix_bias",
       {sharded(r({8, 3}), 0), sharded(r({8, 5}), 0), weight(r({5, 3}))},
       [](const Tensors& t) { return at::addmm(t[0], t[1], t[2], 0.5, -2); },
       few},
      {"addmm_over_a_sharded_contraction",
       {weight(r({3})), sharded(r({4, 8}), 1), weight(r({8, 3}))},
       [](const Tensors& t) { return at::addmm(t[0], t[1], t[2], 0.5, 3); },
       few},
      {"baddbmm_with_beta_and_alpha",
       {weight(r({2, 1, 3})), sharded(r({2, 8, 5}), 1), weight(r({2, 5, 3}))},
       [](const Tensors& t) { return at::baddbmm(t[0], t[1], t[2], 0.5, -2); },
       few},
      {"addmv",
       {weight(r({8})), sharded(r({8, 5}), 0), weight(r({5}))},
       [](const Tensors& t) { return at::addmv(t[0], t[1], t[2], 0.5, -2); },
       few},
      {"addr",
       {sharded(r({8, 4}), 0), sharded(r({8}), 0), weight(r({4}))},
       [](const Tensors& t) { return at::addr(t[0], t[1], t[2], 0.5, 2).square(); }},
      {"addr_without_the_first",
       {weight(r({8, 4})), sharded(r({8}), 0), weight(r({4}))},
       [](const Tensors& t) { return at::addr(t[0], t[1], t[2], 0).square(); }},
      {"addbmm_over_a_cut_batch",
       {weight(r({3, 4})), sharded(r({8, 3, 2}), 0), weight(r({8, 2, 4}))},
       [](const Tensors& t) { return at::addbmm(t[0], t[1], t[2], 2, 0.5).square(); }},
      {"bilinear_form",
       {sharded(r({8, 5}), 0), weight(r({5, 5}))},
       [](const Tensors& t) { return (at::matmul(t[0], t[1]) * t[0]).sum(1); },
       few},
  };
}

const char* const kFactorIsWhole = "one factor becomes whole where both are cut alike";
SHARD_SAMPLES(MatrixProducts,
              with_whole(with_traffic(product_cases(), {{"rows_times_contracted", 3.75},
                                                        {"contracted_times_columns", 3.75}}),
                         kFactorIsWhole, {"rows_times_contracted", "contracted_times_columns"}));
SHARD_SAMPLES(NamedProducts, named_cases());

/// Any matmul of 1 to 4 dims, either factor sharded or plain.
Sample random_sample(Random& r) {
  const int64_t m = r.integer(1, 6), k = r.integer(1, 6), n = r.integer(1, 6);
  std::vector<int64_t> a{m, k}, b{k, n};
  const auto batch = r.sizes(r.integer(0, 2), 1, 3);
  a.insert(a.begin(), batch.begin(), batch.end());
  if (r.coin()) b.insert(b.begin(), batch.begin(), batch.end());
  const auto any_dim = [&r](const std::vector<int64_t>& sizes) {
    return r.integer(0, static_cast<int64_t>(sizes.size()) - 1);
  };
  Input left = sharded(r.tensor(a), any_dim(a));
  Input right = r.coin() ? sharded(r.tensor(b), any_dim(b)) : weight(r.tensor(b));
  const Function function = [](const std::vector<at::Tensor>& t) { return at::matmul(t[0], t[1]); };
  Check check{.traffic = 0.5};  // pending sums of an output as large as the factors
  if (right.shard_dim >= 0) check = {.traffic = 6, .holds_whole = kFactorIsWhole};
  return {"random", {left, right}, function, check};
}
SHARD_RANDOM_SAMPLES(RandomMatmul, random_sample);

/// Calls forward and backward of `layer` on sharded tokens.
std::pair<CommCounter::Table, CommCounter::Table> traffic(
    const std::function<at::Tensor(const at::Tensor&)>& layer, World& world) {
  const auto x = scatter_tensor(r({2, 8, 5}), 0, world.mesh(), {Shard(1)}).set_requires_grad(true);
  const CommCounter forward;
  const auto y = layer(x);
  const auto sent = forward.counts();
  const auto cotangent = torch::ones_like(y);
  const CommCounter backward;
  y.backward(cotangent);
  return {sent, backward.counts()};
}

int64_t calls(const CommCounter::Table& table) {
  int64_t sum = 0;
  for (const auto& [key, count] : table) sum += count.calls;
  return sum;
}

TEST(Linear, OfTokensSendsNothingForwardAndOneReductionBackward) {
  run_ranks(3, [](World& world) {
    const auto w = r({3, 5}).requires_grad_();
    const auto b = r({3}).requires_grad_();
    for (const bool biased : {true, false}) {
      const auto [forward, backward] = traffic(
          [&](const at::Tensor& x) { return at::linear(x, w, biased ? b : at::Tensor()); }, world);
      EXPECT_EQ(calls(forward), 0);
      ASSERT_EQ(calls(backward), 1);
      EXPECT_EQ(backward.begin()->first.kind, "all_reduce");
    }
  });
}

// The module calls matmul and add_: the gradients of weight and bias are those of two ops.
TEST(Linear, ModuleSendsNothingForwardAndOneReductionAWeightBackward) {
  run_ranks(2, [](World& world) {
    torch::nn::Linear module(5, 3);
    const auto [forward, backward] =
        traffic([&](const at::Tensor& x) { return module->forward(x); }, world);
    EXPECT_EQ(calls(forward), 0);
    EXPECT_EQ(calls(backward), 2);
  });
}

TEST(Linear, WithoutWeightGradientsSendsNothing) {
  run_ranks(2, [](World& world) {
    const auto w = r({3, 5});
    const auto [forward, backward] =
        traffic([&](const at::Tensor& x) { return at::linear(x, w); }, world);
    EXPECT_EQ(calls(forward) + calls(backward), 0);
  });
}

TEST(MatrixProducts, RefuseSizesThatDoNotFitOnEveryRank) {
  run_ranks(2, [](World& world) {
    const auto x = scatter_tensor(r({8, 5}), 0, world.mesh(), {Shard(0)});
    EXPECT_THROW(at::matmul(x, r({4, 3})), SpecMismatch);
  });
}

TEST(MatrixProducts, OfRowsAndWeightsStayShardedOnRows) {
  run_ranks(3, [](World& world) {
    const auto x = scatter_tensor(r({8, 5}), 0, world.mesh(), {Shard(0)}, {5, 0, 3});
    const auto y = ShardTensor(at::matmul(x, r({5, 2})));
    EXPECT_TRUE(y.spec().placement().is_shard(0));
    EXPECT_EQ(y.spec().partition(), (Partition{5, 0, 3}));
  });
}

}  // namespace
}  // namespace shard::testing
