// SPDX-License-Identifier: Apache-2.0
#include "search/kd_tree.h"

#include <algorithm>
#include <numeric>

namespace shard {
namespace {

constexpr int64_t kLeaf = 16;

/// Before which place a point of this distance belongs; places of equal distance go by index.
bool is_nearer(double squared, int64_t index, const NearestList& list, int64_t place) {
  return squared < list.squared[place] ||
         (squared == list.squared[place] && index < list.indices[place]);
}

void insert(double squared, int64_t index, const NearestList& list) {
  int64_t place = list.size - 1;
  if (!is_nearer(squared, index, list, place)) return;
  for (; place > 0 && is_nearer(squared, index, list, place - 1); --place) {
    list.squared[place] = list.squared[place - 1];
    list.indices[place] = list.indices[place - 1];
  }
  list.squared[place] = squared;
  list.indices[place] = index;
}

/// Both infinitely far: as far as can be.
double squared_or_infinite(double squared) {
  return squared >= 0 ? squared : std::numeric_limits<double>::infinity();
}

}  // namespace

struct KdTree::Search {
  const double* place;
  int64_t first;
  const NearestList& found;
};

KdTree::KdTree(const double* points, int64_t count, int64_t dims)
    : points_(points), dims_(dims), order_(static_cast<size_t>(count)) {
  std::iota(order_.begin(), order_.end(), int64_t{0});
  if (count > 0) build(0, count);
}

void KdTree::build(int64_t begin, int64_t end) {
  const size_t node = nodes_.size();
  nodes_.push_back({begin, end});
  for (int64_t d = 0; d < 2 * dims_; ++d) {
    const bool is_low = d < dims_;
    const auto coordinate = [&](int64_t i) {
      return points_[order_[static_cast<size_t>(i)] * dims_ + d % dims_];
    };
    double bound = coordinate(begin);
    for (int64_t i = begin + 1; i < end; ++i) {
      bound = is_low ? std::min(bound, coordinate(i)) : std::max(bound, coordinate(i));
    }
    boxes_.push_back(bound);
  }
  const int64_t dim = end - begin > kLeaf ? widest_dim(node) : -1;
  if (dim < 0) return;
  const int64_t middle = begin + (end - begin) / 2;
  const auto first = order_.begin();
  std::nth_element(first + begin, first + middle, first + end, [&](int64_t a, int64_t b) {
    return points_[a * dims_ + dim] < points_[b * dims_ + dim];
  });
  build(begin, middle);
  nodes_[node].second = static_cast<int64_t>(nodes_.size());
  build(middle, end);
}

/// -1: all points are at one place.
int64_t KdTree::widest_dim(size_t node) const {
  const double* low = &boxes_[node * 2 * static_cast<size_t>(dims_)];
  int64_t widest = -1;
  double width = 0;
  for (int64_t d = 0; d < dims_; ++d) {
    if (low[dims_ + d] - low[d] > width) {
      width = low[dims_ + d] - low[d];
      widest = d;
    }
  }
  return widest;
}

double KdTree::squared_distance(const double* place, const double* point) const {
  double sum = 0;
  for (int64_t d = 0; d < dims_; ++d) sum += (place[d] - point[d]) * (place[d] - point[d]);
  return squared_or_infinite(sum);
}

double KdTree::squared_gap(const double* place, size_t node) const {
  const double* low = &boxes_[node * 2 * static_cast<size_t>(dims_)];
  double sum = 0;
  for (int64_t d = 0; d < dims_; ++d) {
    const double gap = std::max({0.0, low[d] - place[d], place[d] - low[dims_ + d]});
    sum += gap * gap;
  }
  return sum;
}

void KdTree::find(const double* place, int64_t first, const NearestList& found) const {
  if (!nodes_.empty() && found.size > 0) visit(0, {place, first, found});
}

void KdTree::visit(size_t node, const Search& search) const {
  const auto& found = search.found;
  if (squared_gap(search.place, node) > found.squared[found.size - 1]) return;
  const Node& n = nodes_[node];
  if (n.second < 0) {
    for (int64_t i = n.begin; i < n.end; ++i) {
      const int64_t point = order_[static_cast<size_t>(i)];
      insert(squared_distance(search.place, points_ + point * dims_), search.first + point, found);
    }
    return;
  }
  auto near = node + 1;
  auto far = static_cast<size_t>(n.second);
  if (squared_gap(search.place, far) < squared_gap(search.place, near)) std::swap(near, far);
  visit(near, search);
  visit(far, search);
}

}  // namespace shard
