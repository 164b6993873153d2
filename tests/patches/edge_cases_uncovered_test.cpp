// SPDX-License-Identifier: Apache-2.0
// Situations that may not be supported: each equals the plain op, or every rank raises the same
// typed error. Never a wrong value, another error on some ranks, or a hang.
#include <torch/torch.h>

#include "patches/edge_cases.h"

namespace shard::testing::edge_cases {
namespace {

using at::Tensor;

/// Queries, keys and values cut along the sequence; `keys`: how many of them.
Sample attention(const std::string& name,
                 const std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>& f,
                 int64_t keys = 8, int64_t dim = 2) {
  return {name,
          {sharded(d({2, 4, 8, 3}), dim), sharded(d({2, 4, keys, 3}), dim),
           sharded(d({2, 4, keys, 3}), dim)},
          [f](const Tensors& t) { return f(t[0], t[1], t[2]); },
          Check{.double_backward = false}};  // which LibTorch's kernel does not have
}

std::vector<Sample> samples() {
  torch::manual_seed(78);
  using at::scaled_dot_product_attention;
  const Check once{.double_backward = false};
  return {
      of("mask", d({9, 3}), 0, [](const Tensor& t) { return t.index({t > 0}); }),
      of("masked_select", d({9, 3}), 0, [](const Tensor& t) { return t.masked_select(t > 0); }),
      of(
          "nonzero", d({9, 3}), 0, [](const Tensor& t) { return (t > 0).nonzero(); }, once),
      of("repeat", d({2, 9, 3}), 1,
         [](const Tensor& t) {
           return t.repeat({1, 2, 1});
         }),
      of("tril", d({9, 9}), 0, [](const Tensor& t) { return t.tril(); }),
      of("triu_of_sharded_columns", d({9, 9}), 1, [](const Tensor& t) { return t.triu(1); }),
      attention("attention",
                [](auto& q, auto& k, auto& v) { return scaled_dot_product_attention(q, k, v); }),
      attention("causal_attention",
                [](auto& q, auto& k, auto& v) {
                  return scaled_dot_product_attention(q, k, v, {}, 0, true);
                }),
      attention("attention_with_a_mask",
                [](auto& q, auto& k, auto& v) {
                  const Tensor mask = torch::ones({8, 8}, at::kBool).tril();
                  return scaled_dot_product_attention(q, k, v, mask);
                }),
      attention("attention_with_a_scale",
                [](auto& q, auto& k, auto& v) {
                  return scaled_dot_product_attention(q, k, v, {}, 0, false, 0.3);
                }),
      attention(
          "attention_to_another_sequence",
          [](auto& q, auto& k, auto& v) { return scaled_dot_product_attention(q, k, v); }, 11),
      attention("attention_whose_values_have_a_column_of_zeros",
                [](auto& q, auto& k, auto& v) {
                  const Tensor columns = torch::tensor({1., 0., 1.}, at::kDouble).to(v.dtype());
                  return scaled_dot_product_attention(q, k, v * columns);
                }),
      attention(
          "attention_of_sharded_heads",
          [](auto& q, auto& k, auto& v) { return scaled_dot_product_attention(q, k, v); }, 8, 1),
  };
}

class NotCovered : public SampleTest {};
TEST_P(NotCovered, EqualsThePlainOpOrIsRefusedByAllRanksAlike) {
  const auto report = compare_with_plain(GetParam().sample, GetParam().settings);
  EXPECT_TRUE(report.ok()) << report.text();
}
INSTANTIATE_TEST_SUITE_P(Situation, NotCovered, ::testing::ValuesIn(covered(__FILE__, samples())),
                         name_of_sample);

}  // namespace
}  // namespace shard::testing::edge_cases
