// SPDX-License-Identifier: Apache-2.0
#include "testing/grid_ways.h"

#include <array>

namespace shard::testing {
namespace {

/// The largest dim beside the one that the sample cuts: for the second mesh dim.
int64_t other_dim(const Input& input) {
  int64_t best = -1;
  for (int64_t d = 0; d < input.whole.dim(); ++d) {
    const bool is_better = best < 0 || input.whole.size(d) > input.whole.size(best);
    if (d != input.shard_dim && input.whole.size(d) > 1 && is_better) best = d;
  }
  return best;
}

Placement second_cut(const Input& input) {
  const int64_t dim = other_dim(input);
  return dim < 0 ? Replicate() : Shard(dim);
}

}  // namespace

const GridWay& grid_way(int index) {
  using In = const Input&;
  static const std::array<GridWay, kGridWays> ways{{
      {"2x2 mesh, first dim cuts",
       [](In i) {
         return Placements{Shard(i.shard_dim), Replicate()};
       }},
      {"2x2 mesh, second dim cuts",
       [](In i) {
         return Placements{Replicate(), Shard(i.shard_dim)};
       }},
      {"2x2 mesh, both cut one dim",
       [](In i) {
         return Placements{Shard(i.shard_dim), Shard(i.shard_dim)};
       }},
      {"2x2 mesh, both cut",
       [](In i) {
         return Placements{Shard(i.shard_dim), second_cut(i)};
       }},
      {"2x2 mesh, both cut the other way",
       [](In i) {
         return Placements{second_cut(i), Shard(i.shard_dim)};
       }},
  }};
  return ways[static_cast<size_t>(index)];
}

}  // namespace shard::testing
