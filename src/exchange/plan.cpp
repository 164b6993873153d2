// SPDX-License-Identifier: Apache-2.0
#include <shard/exchange.h>

#include <algorithm>

namespace shard {
namespace {

/// Cuts `rows` at the boundaries of the owners.
void append_segments(const Rows& rows, const Partition& owned, std::vector<Segment>& segments) {
  int64_t offset = 0;
  for (size_t owner = 0; owner < owned.size(); ++owner) {
    const int64_t begin = std::max(rows.begin, offset);
    const int64_t end = std::min(rows.end, offset + owned[owner]);
    if (begin < end) segments.push_back({{begin, end}, static_cast<int64_t>(owner)});
    offset += owned[owner];
  }
}

}  // namespace

HaloPlan make_halo_plan(int64_t dim, const Partition& owned,
                        const std::vector<std::vector<Rows>>& wanted) {
  HaloPlan plan{dim, owned, {}};
  for (const auto& ranges : wanted) {
    auto& segments = plan.segments.emplace_back();
    for (const auto& rows : ranges) append_segments(rows, owned, segments);
  }
  return plan;
}

bool HaloPlan::communicates() const {
  for (size_t rank = 0; rank < segments.size(); ++rank) {
    if (halo_rows(static_cast<int64_t>(rank)) > 0) return true;
  }
  return false;
}

int64_t HaloPlan::wanted_rows(int64_t rank) const {
  int64_t rows = 0;
  for (const auto& segment : segments[static_cast<size_t>(rank)]) rows += segment.size();
  return rows;
}

int64_t HaloPlan::halo_rows(int64_t rank) const {
  int64_t rows = 0;
  for (const auto& segment : segments[static_cast<size_t>(rank)]) {
    if (segment.owner != rank) rows += segment.size();
  }
  return rows;
}

int64_t BoxPlan::ranks() const {
  return static_cast<int64_t>(places.empty() ? dims[0].owned.size() : places[0].size());
}

int64_t BoxPlan::place(size_t dim, int64_t rank) const {
  return places.empty() ? rank : places[dim][static_cast<size_t>(rank)];
}

bool BoxPlan::communicates() const {
  return std::any_of(dims.begin(), dims.end(),
                     [](const HaloPlan& plan) { return plan.communicates(); });
}

}  // namespace shard
