// SPDX-License-Identifier: Apache-2.0
// The one reduction kernel of the threads and MPI backends: sums in rank order, so its bits depend
// neither on the backend nor on how the range is cut.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <shard/communicator.h>

#include <cstdint>

#include "comm/copy.h"
#include "comm/volume.h"

namespace shard {

/// Raises CommError unless `op` is defined for `dtype` (Avg needs a floating or complex dtype, Max
/// and Min a real one).
void check_reducible(const char* where, c10::ScalarType dtype, ReduceOp op);

/// Elements [begin, end) of every output become the reduction over the sources, in the order given.
/// An output may be one of the sources (same address); other overlaps are not allowed. bf16 and
/// half accumulate in float and are rounded once.
void reduce_in_order(c10::ScalarType dtype, ReduceOp op, c10::ArrayRef<const void*> sources,
                     c10::ArrayRef<void*> outputs, int64_t begin, int64_t end);

/// Reduces `tensor` in place where its elements lie in row-major order, by `small` or by `large` as
/// its size decides: what CommCounter takes for granted (comm/volume.h).
template <class Small, class Large>
void reduce_packed(at::Tensor& tensor, const Small& small, const Large& large) {
  const at::Tensor dense = packed(tensor);
  if (static_cast<int64_t>(tensor.nbytes()) <= kSmallReduceBytes) {
    small(dense);
  } else {
    large(dense);
  }
  if (!dense.is_same(tensor)) copy_plain(tensor, dense);
}

}  // namespace shard
