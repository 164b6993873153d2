// SPDX-License-Identifier: Apache-2.0
// What the patch of scaled_dot_product_attention is made of: a call's checked arguments, and how
// its tensors must lie along one mesh dim. From metadata alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/rule.h>
#include <shard/spec.h>

#include <array>
#include <optional>
#include <vector>

namespace shard {

inline constexpr const char* kAttention = "scaled_dot_product_attention";

struct AttentionCall {
  at::Tensor q, k, v, mask;  // mask may be undefined
  double dropout = 0;
  std::optional<double> scale;
  bool has_grouped_heads = false;
  bool has_all_queries = true;      ///< no mesh dim cuts them
  bool is_for_flash = false;        ///< LibTorch would give the whole to its flash kernel
  std::vector<int64_t> order = {};  ///< dims of the result as they lie in memory, outermost first
  /// Whether the mask is alike along each dim of q, told from the global sizes: where two mesh dims
  /// cut the queries, the inner one finds a single row on some ranks.
  std::vector<bool> mask_is_alike = {};
  /// How many heads of q and of k the places have into which other mesh dims cut them.
  Partition heads_of_q = {}, heads_of_k = {};

  int64_t ndim() const { return q.dim(); }
  int64_t query_dim() const { return q.dim() - 2; }
  int64_t key_dim() const { return q.dim() - 2; }
  int64_t head_dim() const { return q.dim() - 3; }
  /// Heads of q that share one of k and v.
  int64_t group() const {
    if (!has_grouped_heads || q.size(head_dim()) == 0 || k.size(head_dim()) == 0) return 1;
    return q.size(head_dim()) / k.size(head_dim());
  }
  std::array<const at::Tensor*, 4> tensors() const { return {&q, &k, &v, &mask}; }
};

/// Raises SpecMismatch, the same on every rank; expands batch dims to equal ones, as a product
/// broadcasts them.
void check_and_expand(AttentionCall& a, bool is_causal);

/// How q, k, v, the mask and the result lie.
struct AttentionLie {
  Layout q, k, v, mask;
  bool is_ring = false;   ///< queries and keys are cut
  bool is_merge = false;  ///< keys only
};

/// `may_cut_keys`: along no other mesh dim are they cut already.
AttentionLie lie_of(const AttentionCall& a, int64_t ranks, bool may_cut_keys);
/// Whole sequences of some heads on every rank, whose numbers are multiples of the ranks.
AttentionLie lie_by_heads(const AttentionCall& a, int64_t ranks);

}  // namespace shard
