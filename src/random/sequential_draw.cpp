// SPDX-License-Identifier: Apache-2.0
#include "random/sequential_draw.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace shard {
namespace {

using at::Tensor;

/// How many numbers are drawn at once: few against the whole, for memory, and not too few, for
/// time. LibTorch's normal_ makes 16 numbers at a time and the last 16 of a tensor anew when they
/// are not: blocks are multiples of 16, and the last one is not smaller than that.
int64_t block_size(int64_t whole) {
  return std::clamp(whole / 16, int64_t{64}, int64_t{1} << 15) / 16 * 16;
}

/// Copies what the numbers [begin, begin + block) of the stream have of the runs to `part`.
void keep(const Tensor& block, int64_t begin, const Runs& runs, const Tensor& part) {
  const auto bytes = static_cast<int64_t>(block.element_size());
  const auto* from = static_cast<const char*>(block.const_data_ptr());
  auto* to = static_cast<char*>(part.mutable_data_ptr());
  runs.for_each_in(begin, begin + block.numel(), [&](const Runs::Overlap& own) {
    std::copy_n(from + own.in_block * bytes, own.count * bytes, to + own.in_runs * bytes);
  });
}

}  // namespace

Tensor SequentialDraw::part(const Runs& runs) const {
  const Tensor part = at::empty({runs.count() * runs.length()}, numbers.dtype);
  const int64_t block = block_size(total);
  for (int64_t begin = 0; begin < total;) {
    const int64_t rest = total - begin;
    const int64_t count = rest >= 2 * block ? block : rest;
    keep(numbers.draw(sampler, count, generator), begin, runs, part);
    begin += count;
  }
  return part;
}

}  // namespace shard
