// SPDX-License-Identifier: Apache-2.0
// Attention to one block of the keys, without autograd: what it gives together with the logarithm
// of its weights' sum, which is all that is needed to merge it with other blocks; and its
// gradients, given the merged result. LibTorch's flash kernel where it applies, else plain products
// in at least float. Shapes as in <shard/ring_attention.h>; no dim is zero.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/spec.h>

#include <vector>

namespace shard {

/// Queries and keys of a block that see each other; rows of the block's tensors. Causal: query i
/// sees the keys 0..i of the part.
struct BlockPart {
  Rows queries;
  Rows keys;
  bool is_causal = false;
};
/// The parts of a block between global rows of queries and of keys; none where no query sees a key.
/// Every query of a causal part sees at least one key.
std::vector<BlockPart> visible_parts(const Rows& queries, const Rows& keys, bool is_causal);

struct Block {
  at::Tensor q, k, v;
  at::Tensor mask;  ///< undefined, bool, or to be added
  at::Tensor kept;  ///< undefined, or factors of the weights: (batch, heads, queries, keys)
  bool is_causal = false;
  double scale = 1;
};

struct BlockResult {
  at::Tensor out;  ///< (batch, heads, queries, f)
  at::Tensor lse;  ///< (batch, heads, queries), -inf where a query sees no key; at least float
};
BlockResult attend(const Block& block);

struct BlockGradients {
  at::Tensor q, k, v;
  at::Tensor mask;  ///< (batch, heads, queries, keys), when wanted
};
/// `out` and `lse`: of all blocks; `lse` must be finite (any number where a query sees no key).
BlockGradients attend_backward(const at::Tensor& gradient, const Block& block,
                               const BlockResult& merged, bool wants_mask);

/// Adds what a block gives to `sum` (both at least float, overwritten).
void merge(const BlockResult& sum, const BlockResult& block);

/// float for the half precisions, else the dtype itself.
at::ScalarType accumulating_dtype(at::ScalarType dtype);

/// Zero instead of -inf.
at::Tensor finite(const at::Tensor& lse);

/// A bool mask as one to be added, in `dtype`; others in that dtype.
at::Tensor additive_mask(const at::Tensor& mask, at::ScalarType dtype);

}  // namespace shard
