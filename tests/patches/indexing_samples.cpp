// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<Sample> samples() {
  torch::manual_seed(90);
  const at::Tensor rows = torch::tensor({4, 0, 4, 7}, at::kLong);
  const at::Tensor mask = torch::rand({8}) > 0.5;
  const auto x = [] { return torch::randn({2, 8, 6}, at::kDouble); };
  return {
      {"index_select_of_the_sharded_dim",
       {sharded(x(), 1)},
       [=](const Tensors& t) { return t[0].index_select(1, rows).square(); }},
      {"index_select_of_another_dim",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         return t[0].index_select(2, torch::tensor({5, 5, 0}, at::kLong)).square();
       }},
      {"index_by_a_list",
       {sharded(x(), 1)},
       [=](const Tensors& t) {
         return at::index(t[0], {at::Tensor(), rows}).square();
       }},
      {"gather_along_another_dim",
       {sharded(x(), 1), constant(torch::randint(0, 6, {2, 8, 3}), 1)},
       [](const Tensors& t) { return t[0].gather(2, t[1]).square(); }},
      {"gather_along_the_sharded_dim",
       {sharded(x(), 1), constant(torch::randint(0, 8, {2, 5, 6}), 0)},
       [](const Tensors& t) { return t[0].gather(1, t[1]).square(); }},
  };
}
SHARD_SAMPLES(Indexing, with_traffic(samples(), {{"index_select_of_the_sharded_dim", 2.25},
                                                 {"index_by_a_list", 2.25},
                                                 {"gather_along_the_sharded_dim", 2.25}}));

/// Rows of any dim, in any order, some more than once.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 7);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t along = r.integer(0, last);
  std::vector<int64_t> rows;
  for (int64_t i = r.integer(1, 6); i > 0; --i) {
    rows.push_back(r.integer(0, sizes[static_cast<size_t>(along)] - 1));
  }
  const Input input = sharded(r.tensor(sizes), r.integer(0, last));
  const Function function = [=](const Tensors& t) {
    return t[0].index_select(along, at::tensor(rows, at::kLong)).square();
  };
  Check check;
  if (along == input.shard_dim) check.traffic = 2.25;
  if (input.whole.numel() == sizes[static_cast<size_t>(along)]) {
    check.traffic = 6;
    check.holds_whole = "there is no other dim to cut";
  }
  return {"random", {input}, function, check};
}
SHARD_RANDOM_SAMPLES(RandomIndexing, random_sample);

}  // namespace
}  // namespace shard::testing
