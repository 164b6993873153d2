// SPDX-License-Identifier: Apache-2.0
// Ops that pick, sort, repeat or write rows of the sharded dim by their global number, whose inputs
// and gradients travel between ranks.
#include <torch/torch.h>

#include "patches/edge_cases.h"

namespace shard::testing::edge_cases {
namespace {

using at::Tensor;
using torch::indexing::Slice;

Tensor numbers(std::initializer_list<int64_t> values) {
  return torch::tensor(std::vector<int64_t>(values), at::kLong);
}

std::vector<Sample> reads() {
  torch::manual_seed(76);
  const auto seen = [](const std::string& name, const Unary& f) {
    return of(name, d({2, 16, 6}), 1, [f](const Tensor& t) { return f(t).square(); });
  };
  return {
      seen("advanced_index",
           [](const Tensor& t) {
             return t.index({Slice(), numbers({3, 15, 3, 0})});
           }),
      seen("advanced_index_of_rows_and_columns",
           [](const Tensor& t) {
             return t.index({Slice(), numbers({3, 15, 3}), numbers({1, 1, 5})});
           }),
      seen("flip", [](const Tensor& t) { return t.flip({1}); }),
      seen("roll", [](const Tensor& t) { return t.roll(3, 1); }),
      seen("repeat_interleave", [](const Tensor& t) { return t.repeat_interleave(2, 1); }),
      seen("diff", [](const Tensor& t) { return t.diff(1, 1); }),
      seen("cumsum", [](const Tensor& t) { return t.cumsum(1); }),
      seen("sort", [](const Tensor& t) { return std::get<0>(t.sort(1)); }),
      seen("topk", [](const Tensor& t) { return std::get<0>(t.topk(3, 1)); }),
      of("global_average_pool", d({2, 3, 9, 5}), 2,
         [](const Tensor& t) {
           return at::adaptive_avg_pool2d(t, {1, 1}).square();
         }),
      {"index_by_a_sharded_list",
       {sharded(d({16, 3}), 0), constant(torch::randint(0, 16, {9}), 0)},
       [](const Tensors& t) { return t[0].index_select(0, t[1]).square(); }},
      {"gather",
       {sharded(d({2, 16, 6}), 1), constant(torch::randint(0, 16, {2, 5, 6}))},
       [](const Tensors& t) { return t[0].gather(1, t[1]).square(); }},
  };
}
SHARD_SAMPLES(RowReads, with_traffic(reads(), {{"advanced_index", 2.25},
                                               {"advanced_index_of_rows_and_columns", 2.25},
                                               {"flip", 2},
                                               {"cumsum", 1.5},
                                               {"sort", 1.5},
                                               {"topk", 1.5},
                                               {"index_by_a_sharded_list", 2},
                                               {"gather", 2.25}}));

std::vector<Sample> writes() {
  torch::manual_seed(77);
  const auto put = [](const std::string& name, const std::vector<Tensor>& at, const Tensor& values,
                      bool accumulate, Sizes sizes = {16}) {
    return Sample{name,
                  {sharded(d(std::move(sizes)), 0), weight(values)},
                  [at, accumulate](const Tensors& t) {
                    torch::List<std::optional<Tensor>> indices;
                    for (const auto& index : at) indices.push_back(index);
                    return (t[0] * 1).index_put_(indices, t[1], accumulate).square();
                  }};
  };
  const Tensor rows = numbers({2, 9, 2, 15, 0, 9});
  return {
      put("of_every_row", {torch::arange(16)}, d({16}), false),
      put("of_some_rows", {numbers({15, 3, 8})}, d({3}), false),
      put("added_to_rows_several_times", {rows}, d({6}), true),
      put("added_to_rows_and_columns_several_times", {rows, numbers({1, 0, 1, 2, 2, 0})}, d({6}),
          true, {16, 3}),
      {"index_add",
       {sharded(d({16, 3}), 0), weight(d({6, 3}))},
       [rows](const Tensors& t) { return t[0].index_add(0, rows, t[1]).square(); }},
      {"scatter_add",
       {sharded(d({16, 3}), 0), weight(d({6, 3})), constant(torch::randint(0, 16, {6, 3}))},
       [](const Tensors& t) { return t[0].scatter_add(0, t[2], t[1]).square(); }},
  };
}
SHARD_SAMPLES(RowWrites,
              with_whole(with_traffic(writes(), {{"of_every_row", 9},
                                                 {"of_some_rows", 9},
                                                 {"added_to_rows_several_times", 6},
                                                 {"added_to_rows_and_columns_several_times", 6},
                                                 {"index_add", 1.5},
                                                 {"scatter_add", 1.5}}),
                         "every dim is indexed, so none can be cut",
                         {"of_every_row", "of_some_rows", "added_to_rows_several_times",
                          "added_to_rows_and_columns_several_times"}));

}  // namespace
}  // namespace shard::testing::edge_cases
