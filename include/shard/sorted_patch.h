// SPDX-License-Identifier: Apache-2.0
// NOTE [Lines sorted over the ranks]
// A tensor whose only dim larger than 1 is cut is a line, and no rank may hold it whole. Every rank
// sorts its part; then all look up together how many elements of each rank are among the first k of
// all, for several k at once. Values are integers for that (keys), so that the range in which an
// element's key lies can be divided by the same numbers on all ranks: a round is one small sum, and
// leaves a sixteenth of the range. Of equal elements those of the first ranks come first, so that
// the order is that of a stable sort, and what a rank gets is as large as it was asked for, even if
// all values are equal.
#pragma once

#include <shard/rule.h>

#include <cstdint>
#include <vector>

namespace shard {

/// Whether argument 0 is cut along `dim` and has nothing but one line there. A level that does not
/// know the whole tensor says no.
bool is_cut_line(const OpCall& level, int64_t dim);

/// A rank's part of a line in LibTorch's order: NaNs are the largest; what is equal stays as it
/// was, also where the order is descending.
struct SortedPart {
  at::Tensor values;
  at::Tensor places;  ///< where in the part each one was
  at::Tensor keys;    ///< long, ascending, equal where LibTorch's order has them equal
};
/// Of a plain 1-d tensor.
SortedPart sorted_part(const at::Tensor& part, bool descending = false);
/// The first `k` of it, of equal ones any; all where it has fewer.
SortedPart first_of_part(const at::Tensor& part, int64_t k, bool descending);

/// How many elements of every rank are among the first `targets[i]` of all: (ranks, targets) on the
/// host, the same on every rank. Collective.
at::Tensor counts_among_first(const std::vector<int64_t>& targets, const at::Tensor& keys,
                              const DeviceMesh& mesh);

/// One element, plain, of one number each; the same on every rank.
struct LineElement {
  at::Tensor value;
  at::Tensor position;  ///< in the line
};
/// What rank `owner` has at `index` of `values` and `positions`. Collective.
LineElement element_of_rank(int64_t owner, int64_t index, const at::Tensor& values,
                            const at::Tensor& positions, const DeviceMesh& mesh);
/// Number `k` of all in order; `offset` elements of the line lie before this rank's part.
/// Collective.
LineElement element_in_order(int64_t k, const SortedPart& own, int64_t offset,
                             const DeviceMesh& mesh);
/// The median as LibTorch has it: the lower of two; the first NaN if there is one, unless they are
/// ignored. Collective.
LineElement median_of_line(const SortedPart& own, bool ignores_nan, int64_t offset,
                           const DeviceMesh& mesh);

}  // namespace shard
