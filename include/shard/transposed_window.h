// SPDX-License-Identifier: Apache-2.0
// Geometry of what spreads rows instead of gathering them: transposed convolution and fold. Input
// row i is added to the output rows i * stride - padding + dilation * [0, kernel).
#pragma once

#include <shard/exchange.h>

#include <vector>

namespace shard {

struct TransposedWindow {
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t dilation = 1;
  int64_t output_padding = 0;  ///< further rows at the end

  int64_t reach() const { return dilation * (kernel - 1) + 1; }
  int64_t output_size(int64_t n) const;
  /// Each input row's owner has the `stride` output rows in the middle of those that the row is
  /// added to. So a kernel as long as the stride sends nothing, and the window whose transpose this
  /// is gives the input's boundaries back where they were multiples of the stride.
  Partition output_partition(const Partition& input) const;
};

/// What one rank computes: output rows `out` from input rows `in` with `before`/`after` rows of
/// zeros around them. Of what all these rows make, `padding` rows at the begin are not wanted, and
/// `output_padding` fewer at the end: the arguments of LibTorch's op on them.
struct TransposedPart {
  Rows out;
  Rows in;
  int64_t before = 0;
  int64_t after = 0;
  int64_t padding = 0;
  int64_t output_padding = 0;  ///< less than the stride
};
std::vector<TransposedPart> transposed_parts(const TransposedWindow& window,
                                             const Partition& input);

}  // namespace shard
