// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/torch.h>

#include <limits>

#include "attention_call.h"

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// LibTorch's flash kernel, which takes four dims and no mask that needs a gradient, cannot be
/// differentiated twice.
const Check kOnce{.double_backward = false};
const Function kPlain = attention();
const Function kCausal = attention({.is_causal = true});
const Function kGrouped = attention({.has_grouped_heads = true});
const Function kGroupedCausal = attention({.is_causal = true, .has_grouped_heads = true});

Tensor heads(int64_t rows, int64_t width = 4, int64_t count = 3) {
  return torch::randn({2, count, rows, width});
}
Tensor lines(int64_t rows, int64_t width = 4) { return torch::randn({3, rows, width}); }

/// (rows, batch, heads * 4) -> (batch, heads, rows, 4), as modules make heads of features.
Tensor split_heads(const Tensor& x) {
  return x.view({x.size(0), x.size(1), -1, 4}).permute({1, 2, 0, 3});
}

/// Some keys are not seen; the query of row 2 sees none.
Tensor seen(const std::vector<int64_t>& sizes) {
  Tensor mask = torch::rand(sizes) > 0.4;
  mask.select(-2, 2).fill_(false);
  return mask;
}
/// Of every query's keys a whole stretch is not seen: whole blocks on some ranks.
Tensor far_keys_hidden(int64_t queries, int64_t keys) {
  const Tensor i = torch::arange(queries).unsqueeze(1);
  const Tensor j = torch::arange(keys).unsqueeze(0);
  return (i - j).abs() <= 1;
}

std::vector<Sample> local_ones() {
  return {
      {"cut_along_the_batch",
       {sharded(heads(5), 0), sharded(heads(7), 0), sharded(heads(7), 0)},
       kPlain,
       kOnce},
      {"cut_along_the_heads",
       {sharded(heads(5), 1), sharded(heads(7), 1), sharded(heads(7), 1)},
       kCausal,
       kOnce},
      {"cut_along_the_batch_with_a_mask_alike_for_all",
       {sharded(lines(5), 0), sharded(lines(7), 0), sharded(lines(7), 0),
        weight(torch::randn({5, 7}))},
       kPlain},
      {"cut_along_the_heads_with_a_mask_for_each",
       {sharded(heads(5), 1), sharded(heads(7), 1), sharded(heads(7), 1),
        weight(torch::randn({2, 3, 5, 7}))},
       kPlain},
      {"cut_batch_of_queries_next_to_whole_keys",
       {sharded(lines(5), 0), weight(lines(7)), weight(lines(7))},
       kPlain},
      {"whole_queries_next_to_a_cut_batch_of_keys",
       {weight(lines(5)), sharded(lines(7), 0), sharded(lines(7), 0)},
       kPlain},
      {"cut_batch_of_queries_next_to_a_cut_sequence_of_keys",
       {sharded(lines(5), 0), sharded(lines(7), 1), sharded(lines(7), 1)},
       kPlain},
      {"grouped_heads_that_are_cut",
       {sharded(heads(5, 4, 6), 1), sharded(heads(7, 4, 3), 1), sharded(heads(7, 4, 3), 1)},
       kGrouped,
       kOnce},
      {"grouped_heads_of_whole_keys",
       {sharded(heads(5, 4, 6), 1), weight(heads(7, 4, 2)), weight(heads(7, 4, 2))},
       kGrouped,
       kOnce},
      {"whole_queries_of_grouped_heads_that_are_cut",
       {weight(heads(5, 4, 6)), sharded(heads(7, 4, 2), 1), sharded(heads(7, 4, 2), 1)},
       kGrouped,
       kOnce},
      {"one_head_of_keys_for_cut_heads_of_queries",
       {sharded(heads(5, 4, 6), 1), sharded(heads(7, 4, 1), 1), sharded(heads(7, 4, 1), 1)},
       kGrouped,
       kOnce},
      {"cut_queries_next_to_whole_keys",
       {sharded(lines(7), 1), weight(lines(5)), weight(lines(5))},
       kPlain},
      {"cut_queries_next_to_whole_keys_causal",
       {sharded(lines(7), 1), weight(lines(11)), weight(lines(11))},
       kCausal},
  };
}

std::vector<Sample> rings() {
  return {
      {"cut_sequence",
       {sharded(heads(7), 2), sharded(heads(7), 2), sharded(heads(7), 2)},
       kPlain,
       kOnce},
      {"cut_sequence_causal",
       {sharded(heads(7), 2), sharded(heads(7), 2), sharded(heads(7), 2)},
       kCausal,
       kOnce},
      {"cut_sequence_of_three_dims",
       {sharded(lines(7), 1), sharded(lines(7), 1), sharded(lines(7), 1)},
       kPlain},
      {"cut_sequence_of_three_dims_causal",
       {sharded(lines(7), 1), sharded(lines(7), 1), sharded(lines(7), 1)},
       kCausal},
      {"cut_sequence_of_two_dims",
       {sharded(torch::randn({13, 4}), 0), sharded(torch::randn({13, 4}), 0),
        sharded(torch::randn({13, 5}), 0)},
       kCausal},
      {"cut_sequence_of_five_dims",
       {sharded(torch::randn({2, 1, 3, 5, 4}), 3), sharded(torch::randn({2, 1, 3, 5, 4}), 3),
        sharded(torch::randn({2, 1, 3, 5, 4}), 3), weight(torch::randn({3, 1, 5}))},
       kPlain},
      {"one_sequence_for_all_three",
       {sharded(lines(7), 1)},
       [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[0], t[0]); }},
      {"queries_and_keys_of_different_lengths",
       {sharded(heads(5), 2), sharded(heads(11), 2), sharded(heads(11), 2)},
       kPlain,
       kOnce},
      {"fewer_queries_than_keys_causal",
       {sharded(heads(5), 2), sharded(heads(11), 2), sharded(heads(11), 2)},
       kCausal,
       kOnce},
      {"more_queries_than_keys_causal",
       {sharded(heads(11), 2), sharded(heads(5), 2), sharded(heads(5), 2)},
       kCausal,
       kOnce},
      {"one_query",
       {sharded(heads(1), 2), sharded(heads(7), 2), sharded(heads(7), 2)},
       kPlain,
       kOnce},
      {"a_long_sequence",
       {sharded(torch::randn({1, 1, 701, 8}), 2), sharded(torch::randn({1, 1, 701, 8}), 2),
        sharded(torch::randn({1, 1, 701, 8}), 2)},
       kCausal,
       kOnce},
      {"one_key",
       {constant(heads(7), 2), constant(heads(1), 2), sharded(heads(1), 2)},
       kPlain,
       kOnce},
      {"values_wider_than_keys",
       {sharded(lines(7), 1), sharded(lines(7), 1), sharded(lines(7, 5), 1)},
       kPlain},
      {"another_scale",
       {sharded(heads(7), 2), sharded(heads(7), 2), sharded(heads(7), 2)},
       attention({.scale = 0.7}),
       kOnce},
      {"a_mask_cut_along_the_queries",
       {sharded(lines(5), 1), sharded(lines(7), 1), sharded(lines(7), 1),
        sharded(torch::randn({5, 7}), 0)},
       kPlain},
      {"a_mask_cut_along_the_keys",
       {sharded(lines(5), 1), sharded(lines(7), 1), sharded(lines(7), 1),
        sharded(torch::randn({3, 5, 7}), 2)},
       kPlain},
      {"a_whole_mask",
       {sharded(lines(5), 1), sharded(lines(7), 1), sharded(lines(7), 1),
        weight(torch::randn({3, 5, 7}))},
       kPlain},
      {"a_mask_of_one_row",
       {sharded(heads(5), 2), sharded(heads(7), 2), sharded(heads(7), 2),
        weight(torch::randn({2, 1, 1, 7}))},
       kPlain},
      {"a_mask_of_one_column",
       {sharded(lines(5), 1), sharded(lines(7), 1), sharded(lines(7), 1),
        sharded(torch::randn({5, 1}), 0)},
       kPlain},
      {"a_constant_mask",
       {sharded(heads(5), 2), sharded(heads(7), 2), sharded(heads(7), 2),
        constant(torch::randn({1, 3, 5, 7}), 2)},
       kPlain,
       kOnce},
      {"a_bool_mask_with_a_query_that_sees_nothing",
       {sharded(heads(5), 2), sharded(heads(7), 2), sharded(heads(7), 2),
        constant(seen({5, 7}), 0)},
       kPlain,
       kOnce},
      {"a_bool_mask_that_is_differentiated_twice",
       {sharded(lines(5), 1), sharded(lines(7), 1), sharded(lines(7), 1),
        constant(seen({5, 7}), 0)},
       kPlain},
      {"a_bool_mask_that_hides_whole_blocks",
       {sharded(heads(11), 2), sharded(heads(11), 2), sharded(heads(11), 2),
        constant(far_keys_hidden(11, 11))},
       kPlain,
       kOnce},
      {"only_the_mask_is_cut",
       {weight(lines(5)), weight(lines(7)), weight(lines(7)), sharded(torch::randn({5, 7}), 0)},
       kPlain},
      {"only_the_mask_is_cut_along_the_keys",
       {weight(lines(5)), weight(lines(7)), weight(lines(7)), sharded(torch::randn({5, 7}), 1)},
       kPlain},
      {"grouped_heads",
       {sharded(heads(7, 4, 6), 2), sharded(heads(7, 4, 2), 2), sharded(heads(7, 4, 2), 2)},
       kGroupedCausal,
       kOnce},
      {"grouped_heads_of_three_dims",
       {sharded(torch::randn({4, 7, 4}), 1), sharded(torch::randn({2, 7, 4}), 1),
        sharded(torch::randn({2, 7, 4}), 1)},
       kGrouped},
      {"keys_that_all_batches_share",
       {sharded(heads(5), 2), sharded(torch::randn({1, 3, 7, 4}), 2),
        sharded(torch::randn({3, 7, 4}), 1)},
       kPlain,
       kOnce},
      {"whole_values_next_to_cut_keys",
       {sharded(lines(5), 1), sharded(lines(7), 1), weight(lines(7))},
       kPlain},
      {"queries_and_a_batch_of_keys_are_cut",
       {sharded(lines(5), 1), sharded(lines(7), 0), sharded(lines(7), 0)},
       kPlain},
      {"features_that_are_cut",
       {sharded(lines(5, 7), 2), sharded(lines(7, 7), 2), sharded(lines(7, 7), 2)},
       kPlain},
      {"heads_made_of_cut_features",
       {sharded(torch::randn({7, 2, 12}), 0), sharded(torch::randn({7, 2, 12}), 0),
        sharded(torch::randn({7, 2, 12}), 0)},
       [](const Tensors& t) {
         return at::scaled_dot_product_attention(split_heads(t[0]), split_heads(t[1]),
                                                 split_heads(t[2]))
             .permute({2, 0, 1, 3})
             .flatten(2);
       },
       kOnce},
      {"rows_that_are_not_contiguous",
       {sharded(heads(4, 7).transpose(2, 3), 2), sharded(heads(4, 7).transpose(2, 3), 2),
        sharded(heads(4, 7).transpose(2, 3), 2)},
       kPlain,
       kOnce},
      {"logits_up_to_two_hundred",
       {sharded(lines(7).sign() * 10, 1), sharded(lines(7).sign() * 10, 1), sharded(lines(7), 1)},
       kCausal,
       kOnce},
      {"without_gradient_of_the_keys",
       {sharded(heads(7), 2), constant(heads(7), 2), constant(heads(7), 2)},
       kPlain,
       kOnce},
      {"with_gradient_of_the_values_only",
       {constant(heads(7), 2), constant(heads(7), 2), sharded(heads(7), 2)},
       kCausal,
       kOnce},
  };
}

std::vector<Sample> merges() {
  return {
      {"whole_queries_next_to_cut_keys",
       {weight(heads(5)), sharded(heads(7), 2), sharded(heads(7), 2)},
       kPlain,
       kOnce},
      {"whole_queries_next_to_cut_keys_differentiated_twice",
       {weight(lines(5)), sharded(lines(7), 1), sharded(lines(7), 1)},
       kPlain},
      {"whole_queries_next_to_cut_keys_causal",
       {weight(lines(5)), sharded(lines(11), 1), sharded(lines(11), 1)},
       kCausal},
      {"whole_queries_next_to_cut_keys_with_a_mask",
       {weight(lines(5)), sharded(lines(7), 1), sharded(lines(7), 1), weight(torch::randn({5, 7}))},
       kPlain},
      {"whole_queries_of_which_one_sees_nothing",
       {weight(lines(5)), sharded(lines(7), 1), sharded(lines(7), 1), constant(seen({5, 7}))},
       kPlain},
      {"whole_queries_of_grouped_heads",
       {weight(heads(5, 4, 6)), sharded(heads(7, 4, 2), 2), sharded(heads(7, 4, 2), 2)},
       kGrouped,
       kOnce},
  };
}

std::vector<Sample> cases() {
  torch::manual_seed(3);
  std::vector<Sample> all = local_ones();
  for (const auto& more : {rings(), merges()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Keys and values travel around the ranks, forward and backward, and under a causal mask queries
// for the balance; attention_test counts the bytes.
const std::map<std::string, double> kTraffic{
    {"grouped_heads_of_whole_keys", 1.25},
    {"cut_sequence", 6.5},
    {"cut_sequence_causal", 7},
    {"cut_sequence_of_three_dims", 6.5},
    {"cut_sequence_of_three_dims_causal", 7},
    {"cut_sequence_of_two_dims", 7.25},
    {"cut_sequence_of_five_dims", 6.25},
    {"one_sequence_for_all_three", 19.75},
    {"queries_and_keys_of_different_lengths", 4.5},
    {"fewer_queries_than_keys_causal", 4.5},
    {"more_queries_than_keys_causal", 5.75},
    {"one_query", 6},
    {"a_long_sequence", 7},
    {"one_key", 0.75},
    {"values_wider_than_keys", 6.75},
    {"another_scale", 6.5},
    {"a_mask_cut_along_the_keys", 1.25},
    {"a_mask_of_one_row", 3.5},
    {"a_mask_of_one_column", 3.25},
    {"a_bool_mask_with_a_query_that_sees_nothing", 0.25},
    {"grouped_heads", 5.25},
    {"grouped_heads_of_three_dims", 4.75},
    {"keys_that_all_batches_share", 8},
    {"whole_values_next_to_cut_keys", 3.75},
    {"features_that_are_cut", 8.75},
    {"heads_made_of_cut_features", 6.5},
    {"rows_that_are_not_contiguous", 6.5},
    {"logits_up_to_two_hundred", 7},
    {"without_gradient_of_the_keys", 3.75},
    {"with_gradient_of_the_values_only", 6.5},
};
SHARD_SAMPLES(Attention, with_traffic(cases(), kTraffic));

/// Any lengths, heads, masks and cuts, in three dims: LibTorch's path that can be differentiated
/// twice.
Sample random_sample(Random& r) {
  const int64_t batch = r.integer(1, 3);
  const int64_t queries = r.integer(1, 13);
  // One key has weight one: gradients of query and key are rounding around zero.
  const int64_t keys = std::max<int64_t>(r.coin() ? queries : r.integer(2, 13), 2);
  const int64_t width = r.integer(1, 5);
  const int64_t q_cut = r.one_of<int64_t>({1, 1, 1, 0, 2, -1});
  const int64_t k_cut = q_cut < 0 || r.coin() ? 1 : r.one_of<int64_t>({-1, 0, 2});
  std::vector<Input> inputs{{r.tensor({batch, queries, width}), q_cut},
                            {r.tensor({batch, keys, width}), k_cut},
                            {r.tensor({batch, keys, width}), k_cut}};
  AttentionOptions options;
  if (r.coin()) options.scale = 0.1 * static_cast<double>(r.integer(1, 9));
  if (const int64_t kind = r.integer(0, 3); kind == 0) {
    options.is_causal = true;
  } else if (kind == 1) {
    inputs.push_back({r.tensor({r.coin() ? batch : 1, queries, keys}), r.integer(-1, 2)});
    if (inputs.back().whole.size(0) == 1 && inputs.back().shard_dim == 0)
      inputs.back().shard_dim = -1;
  } else if (kind == 2) {
    inputs.push_back(constant(r.tensor({queries, keys}) > -0.5, r.integer(-1, 1)));
  }
  return {"random", inputs, attention(options)};
}

Sample costly_sample(Random& r) {
  return with_costs(random_sample(r), kCountedElsewhere, "a dim of few rows may be cut");
}
SHARD_RANDOM_SAMPLES(RandomAttention, costly_sample);

}  // namespace
}  // namespace shard::testing
