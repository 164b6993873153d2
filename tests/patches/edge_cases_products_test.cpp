// SPDX-License-Identifier: Apache-2.0
// Products, elementwise ops with plain tensors, dropout and conversions: rows 145 to 152, 159, 214
// to 216 of the peer's table.
#include <torch/types.h>
#include <torch/utils.h>

#include "patches/edge_cases_peer_rows.h"

namespace shard::testing::edge_cases {
namespace {

using at::Tensor;

Sample over_channels(int64_t rows) {
  return {"einsum_over_channels",
          {sharded(d({2, 4, rows, 3}), 2), weight(d({5, 4}))},
          [](const Tensors& t) {
            return at::einsum("bchw,dc->bdhw", {t[0], t[1]});
          }};
}
Sample contraction(int64_t rows) {
  return {"contraction_over_the_sharded_dim",
          {sharded(d({2, 5, rows}), 2), sharded(d({rows, 3}), 0)},
          [](const Tensors& t) { return at::matmul(t[0], t[1]); }};
}
Sample linear(const std::string& name, const Tensor& x, int64_t dim) {
  return {name,
          {sharded(x, dim), weight(d({3, x.size(-1)})), weight(d({3}))},
          [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); }};
}

std::vector<PeersRow> rows() {
  torch::manual_seed(331);
  return {
      {145, over_channels(16)},
      {146, contraction(16)},
      {149, linear("linear_of_sharded_features", d({2, 5, 16}), 2)},
      {151, linear("linear_of_tokens", d({2, 16, 5}), 1)},
      {152, of("gelu_and_dropout_of_nothing", d({2, 16, 5}), 1,
               [](const Tensor& t) { return at::dropout(at::gelu(t), 0, true); })},
      {159, of("to_another_precision", d({2, 16, 5}), 1,
               [](const Tensor& t) {
                 const auto other = t.scalar_type() == at::kFloat ? at::kDouble : at::kFloat;
                 return t.to(other).square();
               },
               {.tolerance = 1e-5})},
  };
}
SHARD_SAMPLE_TESTS(PeersProducts, of_rows(rows()));

std::vector<PeersRow> chunks() {
  torch::manual_seed(332);
  return {
      {214,
       {"plain_tensor_of_the_whole_shape",
        {sharded(d({2, 17, 5}), 1), weight(d({1, 17, 5}))},
        [](const Tensors& t) { return (t[0] + t[1]).square(); }}},
      {215, over_channels(17)},
      {216, contraction(17)},
  };
}
SHARD_SAMPLE_TESTS(PeersChunkedProducts, of_rows_in_chunks(chunks()));

}  // namespace
}  // namespace shard::testing::edge_cases
