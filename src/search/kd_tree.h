// SPDX-License-Identifier: Apache-2.0
// A k-d tree over a set of points: the nearest ones to a place, exactly, ties included.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace shard {

/// The nearest points to one place found so far, best first: by distance, of equal distances by
/// index. Places not taken hold a bound of the distance and kNoPoint.
struct NearestList {
  double* squared;
  int64_t* indices;
  int64_t size;
};
inline constexpr int64_t kNoPoint = std::numeric_limits<int64_t>::max();

/// NOTE [Exact pruning]
/// A box is passed over only when its distance is greater than that of the last point found.
/// Rounding is monotone: coordinate for coordinate, the gap to a box is computed to be no more than
/// that to any point in it, and so are the sums, which add the same terms in the same order. What
/// is found does not depend on how the points are cut into trees.
class KdTree {
 public:
  /// `points`: `count` rows of `dims` coordinates, kept by the caller; no NaNs, infinite ones
  /// allowed.
  KdTree(const double* points, int64_t count, int64_t dims);

  /// Brings the points nearer than the last of `found` into it, numbered from `first`.
  void find(const double* place, int64_t first, const NearestList& found) const;

 private:
  struct Node {
    int64_t begin, end;   ///< of `order_`
    int64_t second = -1;  ///< second child, -1: a leaf; the first one follows its parent
  };
  struct Search;

  void build(int64_t begin, int64_t end);
  int64_t widest_dim(size_t node) const;
  double squared_distance(const double* place, const double* point) const;
  double squared_gap(const double* place, size_t node) const;
  void visit(size_t node, const Search& search) const;

  const double* points_;
  int64_t dims_;
  std::vector<int64_t> order_;
  std::vector<Node> nodes_;
  std::vector<double> boxes_;  ///< of every node the lowest, then the highest coordinates
};

}  // namespace shard
