// SPDX-License-Identifier: Apache-2.0
// Running sums, sorting and the largest ones along the sharded dim: rows 102, 104, 105, 210 and 211
// of the peer's table, and the forms of the same ops that need rows of several ranks.
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>

#include "patches/edge_cases_peer_rows.h"

namespace shard::testing::edge_cases {
namespace {

using at::Tensor;

Tensor image() { return d({2, 4, 16, 6}); }
Tensor largest(const Tensor& t) { return std::get<0>(t.topk(3, 2)); }

std::vector<PeersRow> rows() {
  torch::manual_seed(311);
  return {
      {102, square_of("cumsum", image(), 2, [](const Tensor& t) { return t.cumsum(2); })},
      {104, square_of("sort", image(), 2, [](const Tensor& t) { return std::get<0>(t.sort(2)); })},
      {105, square_of("topk", image(), 2, largest)},
  };
}
SHARD_SAMPLE_TESTS(PeersOrder, of_rows(rows()));

std::vector<PeersRow> chunks() {
  torch::manual_seed(312);
  const Check values{.gradients = false, .double_backward = false};  // as the table has them
  const Tensor x = d({2, 4, 17, 6});
  return {{210, of(
                    "cumsum", x, 2, [](const Tensor& t) { return t.cumsum(2); }, values)},
          {211, of("topk", x, 2, largest, values)}};
}
SHARD_SAMPLE_TESTS(PeersChunkedOrder, of_rows_in_chunks(chunks()));

/// Few different values, so that equal ones lie on several ranks: which of them is taken shows in
/// the indices, and in the gradients.
std::vector<Sample> ties() {
  torch::manual_seed(313);
  std::vector<Sample> list;
  const auto add = [&](const std::string& name, const Unary& f) {
    list.push_back({name,
                    {constant(torch::randint(0, 3, {17, 4}, at::kDouble), 0)},
                    [f](const Tensors& t) { return f(t[0]); }});
  };
  add("stable_sort", [](const Tensor& t) { return std::get<1>(t.sort(true, 0, false)); });
  add("stable_sort_descending", [](const Tensor& t) { return std::get<1>(t.sort(true, 0, true)); });
  add("argsort", [](const Tensor& t) { return at::argsort(t, true, -2, true); });
  add("max", [](const Tensor& t) { return std::get<1>(t.max(0)); });
  add("argmin", [](const Tensor& t) { return t.argmin(); });
  add("cummax", [](const Tensor& t) { return std::get<1>(t.cummax(0)); });
  add("mode", [](const Tensor& t) { return std::get<0>(t.mode(0)); });
  return with_costs(std::move(list), kCountedElsewhere);
}
SHARD_SAMPLES(Ties, ties());

std::vector<Sample> picks() {
  torch::manual_seed(314);
  std::vector<Sample> list;
  const auto add = [&](const std::string& name, const Unary& f) {
    list.push_back(square_of(name, d({17, 4}), 0, f));
  };
  add("more_than_any_rank_has", [](const Tensor& t) { return std::get<0>(t.topk(15, 0)); });
  add("smallest", [](const Tensor& t) { return std::get<0>(t.topk(6, 0, /*largest=*/false)); });
  add("none", [](const Tensor& t) { return std::get<0>(t.topk(0, 0)); });
  add("kthvalue", [](const Tensor& t) { return std::get<0>(t.kthvalue(12, -2, true)); });
  add("median", [](const Tensor& t) { return std::get<0>(t.median(0)); });
  for (const std::string how : {"linear", "lower", "higher", "midpoint", "nearest"}) {
    add("quantile_" + how, [how](const Tensor& t) {
      return t.quantile(torch::tensor({0.1, 0.5, 0.77}, t.options()), 0, false, how);
    });
  }
  return with_costs(std::move(list), kCountedElsewhere);
}
SHARD_SAMPLES(Picks, picks());

}  // namespace
}  // namespace shard::testing::edge_cases
