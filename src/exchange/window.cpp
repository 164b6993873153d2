// SPDX-License-Identifier: Apache-2.0
#include <shard/count_rows.h>
#include <shard/exchange.h>

#include <algorithm>

namespace shard {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

WindowPart part_of(const Window& window, const Rows& out, int64_t n) {
  WindowPart part{out, {0, 0}, 0, 0};
  if (out.size() == 0) return part;
  const int64_t begin = out.begin * window.stride - window.padding;
  const int64_t end = (out.end - 1) * window.stride - window.padding + window.reach();
  part.in.begin = std::clamp<int64_t>(begin, 0, n);
  part.in.end = std::clamp<int64_t>(end, part.in.begin, n);
  part.before = std::min(std::max<int64_t>(-begin, 0), end - begin);
  part.after = end - begin - part.before - part.in.size();
  return part;
}

}  // namespace

int64_t Window::output_size(int64_t n) const {
  const int64_t room = n + 2 * padding - reach();
  if (room < 0 && !ceil_mode) return 0;
  if (!ceil_mode) return room / stride + 1;
  int64_t size = (room >= 0 ? ceil_div(room, stride) : -((-room) / stride)) + 1;
  // The last window must begin inside the input or its left padding.
  if ((size - 1) * stride >= n + padding) --size;
  return std::max<int64_t>(size, 0);
}

Partition partition_outputs(const Partition& input, int64_t total,
                            const std::function<int64_t(int64_t)>& first_output) {
  const int64_t n = total_of(input);
  Partition output;
  int64_t offset = 0;
  int64_t begin = 0;
  for (const int64_t size : input) {
    offset += size;
    int64_t end = total;
    if (offset == 0 && n > 0) end = 0;  // an empty shard before the first row
    if (offset > 0 && offset < n) end = std::clamp<int64_t>(first_output(offset), begin, total);
    output.push_back(end - begin);
    begin = end;
  }
  return output;
}

Partition rounded_partition(const Partition& partition, int64_t unit) {
  Partition result;
  int64_t end = 0, begin = 0;
  for (const int64_t size : partition) {
    end += size;
    const int64_t boundary = (end + unit / 2) / unit * unit;
    result.push_back(boundary - begin);
    begin = boundary;
  }
  return result;
}

Partition Window::output_partition(const Partition& input) const {
  const int64_t n = total_of(input);
  const int64_t centre = (reach() - 1) / 2 - padding;
  return partition_outputs(input, output_size(n), [&](int64_t row) {
    return row > centre ? ceil_div(row - centre, stride) : 0;
  });
}

std::vector<WindowPart> window_parts(const Window& window, const Partition& input) {
  const int64_t n = total_of(input);
  std::vector<WindowPart> parts;
  int64_t begin = 0;
  for (const int64_t size : window.output_partition(input)) {
    parts.push_back(part_of(window, {begin, begin + size}, n));
    begin += size;
  }
  return parts;
}

HaloPlan plan_halo(int64_t dim, const Partition& owned, const std::vector<WindowPart>& parts) {
  std::vector<std::vector<Rows>> wanted;
  for (const auto& part : parts) wanted.push_back({part.in});
  return make_halo_plan(dim, owned, wanted);
}

}  // namespace shard
