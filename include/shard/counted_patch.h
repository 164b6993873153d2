// SPDX-License-Identifier: Apache-2.0
// NOTE [Counted results]
// How many elements a mask picks is in its values. LibTorch lists them in row-major order, so the
// tensor is cut along its outermost dim: what a rank lists of its part is then a run of the whole
// list, and the results of all ranks, one after the other, are the result. Nobody knows the pieces
// before the op has run; the ranks then tell each other how many rows they have (one small
// all-gather of integers), and from there on the result is a tensor like any other, cut unevenly,
// some pieces maybe empty. Errors about the whole size are raised after that exchange, on every
// rank.
#pragma once

#include <shard/count_rows.h>
#include <shard/rule.h>

namespace shard {

/// Of a result in a rule: as many rows along `dim` as every rank's local result has.
inline Layout counted_along(int64_t dim) { return {Shard(dim), {}}; }

/// The first dim in [begin, end) that is larger than 1, else `begin`: pieces along it are runs of
/// these dims in row-major order.
int64_t outermost_dim(c10::IntArrayRef sizes, int64_t begin, int64_t end);
inline int64_t outermost_dim(c10::IntArrayRef sizes) {
  return outermost_dim(sizes, 0, static_cast<int64_t>(sizes.size()));
}
/// The outermost dim of a tensor cut as the tensor has it, else evenly; nothing is cut of a 0-d
/// one.
Layout outermost_cut(const TensorArgument& tensor, const DeviceMesh& mesh);

/// Tensors that broadcast with each other, all cut along the outermost dim of their common sizes:
/// in the pieces of the first one that is cut so, else evenly.
struct BroadcastCut {
  std::vector<int64_t> sizes;
  Layout layout;  ///< of the common sizes; Replicate when these are 0-d
  /// How one of them lies then.
  Layout of(const TensorArgument& tensor) const;
};
BroadcastCut broadcast_cut(const TensorArgument& a, const TensorArgument& b,
                           const DeviceMesh& mesh);

/// The rows along `dim` that the ranks take one after the other from the front of a list, `counts`
/// of them each: this rank's ones. `own` is its part of the list, which lies as `layout` says
/// (Replicate: the whole). Rows beyond the sum of counts are left. Collective unless replicated;
/// not differentiable: for rules, below autograd.
at::Tensor take_rows(const at::Tensor& own, int64_t dim, const Layout& layout,
                     const Partition& counts, const DeviceMesh& mesh);

/// How many elements of a mask are set, on this rank.
int64_t count_set(const at::Tensor& mask);

}  // namespace shard
