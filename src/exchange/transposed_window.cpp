// SPDX-License-Identifier: Apache-2.0
#include <shard/count_rows.h>
#include <shard/transposed_window.h>

#include <algorithm>

namespace shard {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Zero rows are added until what is cut off at the end is at most what is cut off at the begin,
/// by less than the stride: ATen cuts off alike on both sides, then adds the output padding.
TransposedPart part_of(const TransposedWindow& window, const Rows& out, int64_t n) {
  TransposedPart part{out, {0, 0}};
  if (out.size() == 0) return part;
  const int64_t first = out.begin + window.padding;  // counted from the first row of input row 0
  const int64_t last = out.end - 1 + window.padding;
  const int64_t begin =
      first < window.reach() ? 0 : ceil_div(first - window.reach() + 1, window.stride);
  const int64_t end = std::min(last / window.stride + 1, n);
  part.in = begin < end
                ? Rows{begin, end}
                : Rows{first / window.stride, first / window.stride};  // in a gap, or beyond
  part.after = part.in.size() == 0 ? 1 : 0;
  int64_t low = first - part.in.begin * window.stride;
  int64_t high = (part.in.end + part.after - 1) * window.stride + window.reach() - 1 - last;
  for (; low < std::max<int64_t>(high, 0); low += window.stride) ++part.before;
  for (; low - high >= window.stride; high += window.stride) ++part.after;
  if (part.in.size() == 0) part.in = {0, 0};
  part.padding = low;
  part.output_padding = low - high;
  return part;
}

}  // namespace

int64_t TransposedWindow::output_size(int64_t n) const {
  return (n - 1) * stride - 2 * padding + reach() + output_padding;
}

Partition TransposedWindow::output_partition(const Partition& input) const {
  const int64_t n = total_of(input);
  // Half of what reaches beyond the stride lies before; of an odd number the larger part, but not
  // more than lies before the centre.
  const int64_t before =
      std::max<int64_t>(std::min((reach() - stride + 1) / 2, (reach() - 1) / 2), 0);
  return partition_outputs(input, output_size(n),
                           [&](int64_t row) { return row * stride - padding + before; });
}

std::vector<TransposedPart> transposed_parts(const TransposedWindow& window,
                                             const Partition& input) {
  const int64_t n = total_of(input);
  std::vector<TransposedPart> parts;
  int64_t begin = 0;
  for (const int64_t size : window.output_partition(input)) {
    parts.push_back(part_of(window, {begin, begin + size}, n));
    begin += size;
  }
  return parts;
}

}  // namespace shard
