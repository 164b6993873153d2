// SPDX-License-Identifier: Apache-2.0
// Ops and functionals without a patch of their own, which LibTorch makes of ops that have one.
#include <ATen/ops/_weight_norm.h>
#include <support/samples.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

Tensor field(std::vector<int64_t> sizes) { return torch::randn(sizes); }

std::vector<Sample> pooling_cases() {
  torch::manual_seed(71);
  const auto lp = [](double order) {
    return [order](const Tensors& t) {
      return F::lp_pool2d(t[0], F::LPPool2dFuncOptions(order, 3).stride(2));
    };
  };
  return {
      {"lp_pool_2", {sharded(field({2, 2, 9, 6}).abs() + 0.5, 2)}, lp(2)},
      {"lp_pool_3", {sharded(field({1, 2, 9, 6}).abs() + 0.5, 3)}, lp(3)},
      {"lp_pool_one_dim",
       {sharded(field({2, 3, 11}).abs() + 0.5, 2)},
       [](const Tensors& t) {
         return F::lp_pool1d(t[0], F::LPPool1dFuncOptions(2, 3).stride(2).ceil_mode(true));
       }},
  };
}
SHARD_SAMPLES(LpPool, pooling_cases());

std::vector<Sample> normalization_cases() {
  torch::manual_seed(72);
  const auto local_response = [](const Tensors& t) {
    return F::local_response_norm(t[0], F::LocalResponseNormFuncOptions(3).alpha(0.5).k(2));
  };
  const auto rms = [](std::vector<int64_t> shape) {
    return [shape](const Tensors& t) {
      return torch::rms_norm(t[0], shape, t.size() > 1 ? std::optional<Tensor>(t[1]) : std::nullopt,
                             1e-5);
    };
  };
  return {
      {"local_response_norm_rows", {sharded(field({2, 5, 7, 4}), 2)}, local_response},
      {"local_response_norm_columns", {sharded(field({1, 5, 4, 7}), 3)}, local_response},
      {"local_response_norm_channels", {sharded(field({2, 5, 4, 3}), 1)}, local_response},
      {"local_response_norm_batch", {sharded(field({5, 4, 3, 2}), 0)}, local_response},
      {"local_response_norm_one_dim", {sharded(field({2, 5, 7}), 2)}, local_response},
      {"local_response_norm_three_dims", {sharded(field({1, 5, 7, 3, 2}), 2)}, local_response},
      {"rms_norm_of_rows", {sharded(field({2, 7, 6}), 1), weight(field({6}))}, rms({6})},
      {"rms_norm_without_weight", {sharded(field({7, 6}), 0)}, rms({6})},
      {"rms_norm_over_the_sharded_dim",
       {sharded(field({2, 3, 7}), 2), weight(field({7}))},
       rms({7})},
      {"rms_norm_over_two_dims",
       {sharded(field({2, 7, 3}), 1), weight(field({7, 3}))},
       rms({7, 3})},
      {"normalize",
       {sharded(field({2, 7, 4}), 1)},
       [](const Tensors& t) { return F::normalize(t[0], F::NormalizeFuncOptions().dim(1)); }},
  };
}
SHARD_SAMPLES(Normalizations, normalization_cases());

std::vector<Sample> weight_cases() {
  torch::manual_seed(73);
  return {
      {"weight_norm_of_a_plain_weight",
       {sharded(field({1, 2, 7, 4}), 2), weight(field({3, 2, 3, 3})), weight(field({3, 1, 1, 1}))},
       [](const Tensors& t) {
         return torch::conv2d(t[0], torch::_weight_norm(t[1], t[2], 0), {}, 1, 1);
       }},
      {"norm_except_dim",
       {sharded(field({7, 4, 3}), 1)},
       [](const Tensors& t) { return torch::norm_except_dim(t[0], 2, 0); }},
      {"spectral_norm_by_power_iteration",
       {sharded(field({7, 4}), 0), constant(field({4}))},
       [](const Tensors& t) {
         const Tensor u =
             F::normalize(torch::mv(t[0].detach(), t[1]), F::NormalizeFuncOptions().dim(0));
         const Tensor v = torch::mv(t[0].t(), u);
         return t[0] / v.norm();
       }},
  };
}
SHARD_SAMPLES(WeightNorms, weight_cases());

}  // namespace
}  // namespace shard::testing
