// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/embedding_bag.h>
#include <shard/error.h>
#include <shard/tensor.h>
#include <support/rank_errors.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

enum Mode : uint8_t { kSum, kMean, kMax };

Tensor d(const std::vector<int64_t>& sizes) { return torch::randn(sizes, at::kDouble); }
/// 11 rows of a table of 7: row 3 often.
Tensor numbers() { return torch::tensor({3, 0, 6, 3, 3, 1, 5, 2, 3, 4, 0}); }
/// Five bags of them, one empty; as LibTorch's padding takes row 3, one may be nothing but padding.
Tensor offsets() { return torch::tensor({0, 3, 3, 5, 10}); }

struct Bags {
  int64_t mode;
  int64_t padding = -1;
  bool has_last = false;

  Tensor operator()(const Tensors& t) const {
    TORCH_CHECK(t[1].size(0) == 11, "numbers and offsets belong together");
    TORCH_CHECK(t[2].size(0) == (has_last ? 6 : 5));
    const auto weights = t.size() > 3 ? std::optional<Tensor>(t[3]) : std::nullopt;
    const auto padding_index = padding < 0 ? std::nullopt : std::optional<int64_t>(padding);
    return std::get<0>(at::embedding_bag(t[0], t[1], t[2], false, mode, false, weights, has_last,
                                         padding_index))
        .square();
  }
};

/// LibTorch's gradient has no gradient. Lists of numbers cannot be enlarged.
Sample bags(const std::string& name, std::vector<Input> inputs, const Bags& function,
            double traffic = 3) {
  Check check{.traffic = traffic, .holds_whole = "the sums of bags are pending on every rank"};
  check.double_backward = false;
  return {name, std::move(inputs), function, check};
}

std::vector<Sample> samples() {
  torch::manual_seed(290);
  const auto list = [](int64_t dim = -1) { return constant(numbers(), dim); };
  const auto begins = [](int64_t dim = -1) { return constant(offsets(), dim); };
  const Tensor bounds = torch::tensor({0, 3, 3, 5, 10, 11});
  return {
      bags("sum_of_cut_columns", {sharded(d({7, 5}), 1), list(), begins()}, {kSum}),
      bags("mean_of_cut_columns", {sharded(d({7, 5}), 1), list(), begins()}, {kMean, 3}),
      bags("maxima_of_cut_columns", {sharded(d({7, 5}), 1), list(), begins()}, {kMax}),
      bags("weighted_sum_of_cut_columns",
           {sharded(d({7, 5}), 1), list(), begins(), weight(d({11}))}, {kSum}),
      bags("sum_of_cut_rows", {sharded(d({7, 3}), 0), list(), begins()}, {kSum}),
      bags("padded_sum_of_cut_rows", {sharded(d({7, 3}), 0), list(), begins()}, {kSum, 3}),
      bags("mean_of_cut_rows", {sharded(d({7, 3}), 0), list(), begins()}, {kMean}),
      bags("padded_mean_of_cut_rows", {sharded(d({7, 3}), 0), list(), begins()}, {kMean, 3}),
      bags("maxima_of_cut_rows", {sharded(d({7, 3}), 0), list(), begins()}, {kMax, 3}),
      bags("weighted_sum_of_cut_rows", {sharded(d({7, 3}), 0), list(), begins(), weight(d({11}))},
           {kSum, 3}),
      bags("with_the_last_offset", {sharded(d({7, 3}), 0), list(), constant(bounds)},
           {kMean, 3, true}),
      bags("sum_of_cut_numbers", {weight(d({7, 3})), list(0), begins()}, {kSum, 3}),
      bags("mean_of_cut_bags", {weight(d({7, 3})), list(), begins(0)}, {kMean}),
      bags("maxima_of_cut_numbers", {weight(d({7, 3})), list(0), begins(0)}, {kMax}),
      bags("cut_numbers_with_the_last_offset", {weight(d({7, 3})), list(0), constant(bounds)},
           {kMean, -1, true}),
      bags("cut_weights_of_samples", {weight(d({7, 3})), list(0), begins(), sharded(d({11}), 0)},
           {kSum}),
      bags("cut_rows_and_numbers", {sharded(d({7, 3}), 0), list(0), begins()}, {kSum}),
      bags("one_column", {sharded(d({7, 1}), 0), list(), begins()}, {kSum}),
      bags("non_contiguous", {sharded(d({3, 7}).t(), 0), list(), begins()}, {kSum}),
  };
}
SHARD_SAMPLES(EmbeddingBag, samples());

TEST(EmbeddingBag, SparseGradientsAreRefusedAlikeOnEveryRank) {
  expect_same_error<MissingShardPatch>(2, "sparse gradients", [](const DeviceMesh& mesh) {
    const Tensor table = scatter_tensor(torch::randn({7, 3}), 0, mesh, {Shard(0)});
    return [table] { at::embedding_bag(table, numbers(), offsets(), false, kSum, true); };
  });
}

}  // namespace
}  // namespace shard::testing
