// SPDX-License-Identifier: Apache-2.0
// Merging what queries found in two blocks of keys. On CPUs one loop over the rows: the half a
// dozen ops that say the same cost small blocks more than their scores.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/logaddexp.h>

#include <algorithm>
#include <cmath>

#include "exchange/attention_block.h"

namespace shard {
namespace {

using at::Tensor;

/// Of two logarithms of sums of weights.
template <class T>
struct Both {
  T share;  ///< the second's of all weights; none where neither has seen a key
  T lse;

  Both(T first, T second) {
    const T larger = std::max(first, second);
    if (std::isinf(larger)) {
      share = larger > 0 ? (second == larger) : 0;
      lse = larger;
      return;
    }
    const T smaller_sum = std::exp(std::min(first, second) - larger);  // of a larger one of 1
    share = (second == larger ? 1 : smaller_sum) / (1 + smaller_sum);
    lse = larger + std::log(1 + smaller_sum);
  }
};

/// Rows of (batch, heads, queries, f) or (batch, heads, queries), by number.
template <class T>
class RowsOf {
 public:
  RowsOf(const Tensor& t, T* data) : data_(data), heads_(t.size(1)), queries_(t.size(2)) {
    std::copy_n(t.strides().begin(), 3, strides_);
  }
  T* operator[](int64_t row) const {
    const int64_t head = row / queries_;
    return data_ + head / heads_ * strides_[0] + head % heads_ * strides_[1] +
           row % queries_ * strides_[2];
  }

 private:
  T* data_;
  int64_t heads_, queries_;
  int64_t strides_[3];
};

template <class T>
void merge_rows(const BlockResult& sum, const BlockResult& block) {
  const RowsOf<T> out(sum.out, sum.out.mutable_data_ptr<T>());
  const RowsOf<T> lse(sum.lse, sum.lse.mutable_data_ptr<T>());
  const RowsOf<const T> block_out(block.out, block.out.const_data_ptr<T>());
  const RowsOf<const T> block_lse(block.lse, block.lse.const_data_ptr<T>());
  const int64_t width = sum.out.size(3);
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(width, 1));
  at::parallel_for(0, sum.lse.numel(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T& total = *lse[row];
      const Both<T> both(total, *block_lse[row]);
      const T share = both.share;
      T* values = out[row];
      const T* found = block_out[row];
      for (int64_t i = 0; i < width; ++i) values[i] += share * (found[i] - values[i]);
      total = both.lse;
    }
  });
}

void merge_by_ops(const BlockResult& sum, const BlockResult& block) {
  const Tensor share = block.lse.sub(sum.lse).sigmoid_().nan_to_num_(0);
  sum.out.lerp_(block.out, share.unsqueeze(-1));
  sum.lse.copy_(at::logaddexp(sum.lse, block.lse));
}

Tensor with_dense_rows(const Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); }

}  // namespace

void merge(const BlockResult& sum, const BlockResult& block) {
  const auto dtype = sum.out.scalar_type();
  const BlockResult other{with_dense_rows(block.out.to(dtype)), block.lse.to(dtype)};
  if (!sum.out.is_cpu() || sum.out.stride(-1) != 1) return merge_by_ops(sum, other);
  AT_DISPATCH_FLOATING_TYPES(dtype, "merge", [&] { merge_rows<scalar_t>(sum, other); });
}

}  // namespace shard
