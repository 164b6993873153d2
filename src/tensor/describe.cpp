// SPDX-License-Identifier: Apache-2.0
#include <c10/util/StringUtil.h>
#include <shard/describe.h>
#include <shard/tensor.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "tensor/grid.h"

namespace shard {
namespace {

constexpr int64_t kMostRanks = 16;

std::string coordinates(const MeshLayout& layout, int64_t rank) {
  std::vector<int64_t> places(static_cast<size_t>(layout.ndim()));
  for (size_t dim = places.size(); dim-- > 0;) {
    places[dim] = rank % layout.dims[dim].size;
    rank /= layout.dims[dim].size;
  }
  return c10::str("(", c10::Join(", ", places), ")");
}

void describe_rows(std::ostream& out, const Grid& grid, int64_t rank) {
  bool is_cut = false;
  const Box box = grid.box(rank);
  for (const auto& cut : grid.cuts) {
    if (cut.placement.is_partial()) out << "  a contribution (" << cut.placement << ")";
    if (!cut.placement.is_shard()) continue;
    is_cut = true;
    const auto dim = static_cast<size_t>(cut.placement.dim());
    out << "  dim " << dim << ": ";
    if (box.size[dim] == 0) {
      out << "no rows";
    } else {
      out << "rows " << box.begin[dim] << ".." << box.begin[dim] + box.size[dim] - 1;
    }
    out << " of " << grid.shape[dim];
  }
  if (!is_cut) out << "  the whole";
}

}  // namespace

std::string describe(const at::Tensor& tensor) {
  std::ostringstream out;
  if (!is_shard_tensor(tensor)) {
    out << "plain ";
    if (!tensor.defined()) return "an undefined tensor";
    out << tensor.scalar_type() << " " << tensor.sizes();
    return out.str();
  }
  const Grid grid = Grid::of(tensor);
  const auto& layout = grid.mesh.layout();
  out << tensor.scalar_type() << " " << tensor.sizes() << " on " << layout << ", placements "
      << grid.placements();
  for (int64_t rank = 0; rank < std::min(layout.numel(), kMostRanks); ++rank) {
    out << "\n  rank " << layout.world_ranks[static_cast<size_t>(rank)] << "  at "
        << coordinates(layout, rank);
    describe_rows(out, grid, rank);
  }
  if (layout.numel() > kMostRanks) {
    out << "\n  ... and " << layout.numel() - kMostRanks << " more ranks";
  }
  return out.str();
}

}  // namespace shard
