// SPDX-License-Identifier: Apache-2.0
// The blocks of keys and values that a rank sees one after the other, its own first, and the parts
// of them that its queries see.
#pragma once

#include <shard/ring_attention.h>

#include <functional>
#include <vector>

#include "exchange/attention_block.h"
#include "exchange/ring.h"

namespace shard {

/// Rows of two tensors in one contiguous buffer, so that they travel as one message; without a
/// buffer, as two.
struct Pair {
  at::Tensor buffer, k, v;
};

class KeyBlocks {
 public:
  /// `k`, `v`: this rank's own. All must outlive the blocks.
  KeyBlocks(const AttentionPlan& plan, const at::Tensor& k, const at::Tensor& v);

  bool travel() const { return plan_.reach == AttentionPlan::Reach::Ring; }
  int64_t count() const { return travel() ? Ring(plan_.mesh).size() : 1; }
  /// Positions in the sequence of the keys of a step's block.
  const std::vector<Rows>& positions(int64_t step) const { return plan_.keys[owner(step)]; }
  /// The same keys in the order in which the tensors hold them.
  Rows rows(int64_t step) const;

  /// This rank's own keys and values, packed if they are to travel meanwhile.
  Pair own() const;
  Pair empty(int64_t step, at::ScalarType dtype) const;
  Pair zeros(int64_t step, at::ScalarType dtype) const;
  /// Whether one block travels while another is used. The same on every rank.
  bool overlap() const;

 private:
  size_t owner(int64_t step) const;
  const AttentionPlan& plan_;
  const Partition sizes_;
  const at::Tensor& k_;
  const at::Tensor& v_;
};

/// A part of a block that some of the local queries see.
struct SeenPart {
  Rows queries;  ///< rows of the local queries
  Rows keys;     ///< rows of the block
  Rows columns;  ///< of the mask
  Rows query_positions, key_positions;
  bool is_causal = false;
};
/// `seeing`: rows of the local queries.
std::vector<SeenPart> seen_parts(const AttentionPlan& plan, const KeyBlocks& blocks, int64_t step,
                                 const Rows& seeing);

/// What `part` is in tensors. `mask` may be undefined.
Block block_of(const SeenPart& part, const at::Tensor& q, const Pair& keys, const at::Tensor& mask,
               const AttentionPlan& plan);
/// What the plan keeps of the weights of these queries and keys, (batch, heads, queries, keys);
/// undefined: all.
at::Tensor kept_weights(const AttentionPlan& plan, const Rows& queries, const Rows& keys);

/// Rows of the queries.
BlockResult rows_of(const BlockResult& result, const Rows& rows);

/// Loads a block on its way to the next rank; `next` is where the one of the rank before arrives.
void pass_on(Cargo& cargo, const Pair& held, const Pair& next, const DeviceMesh& mesh);

/// Rows along `dim` of a mask, which is alike along dims of size one.
at::Tensor mask_rows(const at::Tensor& mask, int64_t dim, const Rows& rows);

}  // namespace shard
