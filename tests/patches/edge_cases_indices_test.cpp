// SPDX-License-Identifier: Apache-2.0
// Reading and writing by index: rows 125, 141, 142, 167, 169, 170, 229 and 232 of the peer's table,
// and the reported ones of index_put with global indices.
#include <torch/types.h>
#include <torch/utils.h>

#include "patches/edge_cases_peer_rows.h"

namespace shard::testing::edge_cases {
namespace {

using at::Tensor;
using torch::indexing::Slice;

Tensor numbers(const std::vector<int64_t>& list) { return torch::tensor(list, at::kLong); }
Tensor some_of(int64_t rows, Sizes sizes) { return torch::randint(0, rows, sizes, at::kLong); }

std::vector<PeersRow> reads() {
  torch::manual_seed(321);
  const Tensor list = numbers({3, 15, 3, 0, 8});
  return {
      {125, square_of("list_of_the_sharded_dim", d({2, 4, 16, 6}), 2,
                      [list](const Tensor& t) {
                        return t.index({Slice(), Slice(), list});
                      })},
      {141,
       of("where", d({2, 16, 6}), 1,
          [](const Tensor& t) { return at::where(t > 0, t * t, at::zeros({}, t.options())); })},
      {142,
       {"gather_by_a_whole_index",
        {sharded(d({2, 16, 6}), 1), constant(some_of(16, {2, 5, 6}))},
        [](const Tensors& t) { return t[0].gather(1, t[1]).square(); }}},
      {167,
       {"embedding_of_cut_tokens",
        {weight(d({7, 3})), constant(some_of(7, {2, 16}), 1)},
        [](const Tensors& t) { return at::embedding(t[0], t[1]).square(); }}},
      {169,
       {"index_select_by_a_cut_list",
        {sharded(d({16, 3}), 0), constant(some_of(16, {9}), 0)},
        [](const Tensors& t) { return t[0].index_select(0, t[1]).square(); }}},
      {232, square_of("index_select_by_a_whole_list", d({2, 16, 6}), 1,
                      [list](const Tensor& t) { return t.index_select(1, list); })},
  };
}
SHARD_SAMPLE_TESTS(PeersReads, of_rows(reads()));

std::vector<PeersRow> writes() {
  torch::manual_seed(322);
  const Tensor list = numbers({2, 9, 2, 15, 0, 9});
  return {
      {170,
       {"index_add",
        {sharded(d({16, 3}), 0), sharded(d({6, 3}), 0)},
        [list](const Tensors& t) { return t[0].index_add(0, list, t[1]).square(); }}},
      {170,
       {"scatter_add",
        {sharded(d({16, 3}), 0), sharded(d({6, 3}), 0), constant(some_of(16, {6, 3}), 0)},
        [](const Tensors& t) { return t[0].scatter_add(0, t[2], t[1]).square(); }}},
  };
}
SHARD_SAMPLE_TESTS(PeersWrites, of_rows(writes()));

std::vector<PeersRow> chunks() {
  torch::manual_seed(323);
  return {{229, square_of("index_select_by_a_whole_list", d({2, 17, 6}), 1, [](const Tensor& t) {
             return t.index_select(1, numbers({3, 16, 3, 0}));
           })}};
}
SHARD_SAMPLE_TESTS(PeersChunkedReads, of_rows_in_chunks(chunks()));

/// Report 23: indices are global, not those of the rank's own rows.
std::vector<CoveredSample> puts() {
  torch::manual_seed(324);
  const auto put = [](const std::string& name, const Tensor& x, const std::vector<Tensor>& indices,
                      int64_t values, bool accumulate) {
    return Sample{name, {sharded(x, 0), sharded(d({values}), 0)}, [=](const Tensors& t) {
                    c10::List<std::optional<Tensor>> list;
                    for (const auto& index : indices) list.push_back(index);
                    Tensor y = t[0] * 2;
                    return y.index_put_(list, t[1], accumulate).square();
                  }};
  };
  const Tensor rows = numbers({2, 9, -14, 15, 0, 9});
  const Tensor columns = numbers({1, 0, 1, 2, -1, 0});
  std::vector<CoveredSample> result;
  for (auto& covered : of_rows({
           {23, put("every_row", d({16}), {torch::arange(16)}, 16, false)},
           {23, put("every_row_added", d({16}), {torch::arange(16)}, 16, true)},
           {23, put("rows_added_several_times", d({16}), {rows}, 6, true)},
           {23, put("rows_and_columns_added_several_times", d({16, 3}), {rows, columns}, 6, true)},
       })) {
    covered.sample.check.holds_whole = "every dim is indexed, so none can be cut";
    result.push_back(std::move(covered));
  }
  return result;
}
SHARD_SAMPLE_TESTS(ReportedWrites, puts());

}  // namespace
}  // namespace shard::testing::edge_cases
