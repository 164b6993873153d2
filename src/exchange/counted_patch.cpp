// SPDX-License-Identifier: Apache-2.0
#include <ATen/ExpandUtils.h>
#include <ATen/ops/count_nonzero.h>
#include <shard/counted_patch.h>
#include <shard/primitives.h>
#include <shard/reduction_patch.h>

#include "tensor/impl.h"

namespace shard {
namespace {

using at::Tensor;

/// The pieces along `dim` of the common sizes, when the tensor has them.
const Partition* pieces_along(int64_t dim, const TensorArgument& tensor, size_t common_ndim) {
  const int64_t own = dim - static_cast<int64_t>(common_ndim) + tensor.ndim();
  const bool has_them =
      own >= 0 && tensor.shard_dim() == own && tensor.sizes()[static_cast<size_t>(own)] != 1;
  return has_them ? &tensor.spec->partition() : nullptr;
}

}  // namespace

int64_t outermost_dim(c10::IntArrayRef sizes, int64_t begin, int64_t end) {
  for (int64_t dim = begin; dim < end; ++dim) {
    if (sizes[static_cast<size_t>(dim)] != 1) return dim;
  }
  return begin;
}

Layout outermost_cut(const TensorArgument& tensor, const DeviceMesh& mesh) {
  if (tensor.ndim() == 0) return {};
  const int64_t dim = outermost_dim(tensor.sizes());
  if (tensor.shard_dim() == dim) return tensor.layout();
  return {Shard(dim), even_partition(tensor.sizes()[static_cast<size_t>(dim)], mesh.size())};
}

Layout BroadcastCut::of(const TensorArgument& tensor) const {
  if (!layout.is_shard()) return {};
  const int64_t dim = layout.dim() - static_cast<int64_t>(sizes.size()) + tensor.ndim();
  const bool is_cut = dim >= 0 && (tensor.sizes()[static_cast<size_t>(dim)] != 1 ||
                                   sizes[static_cast<size_t>(layout.dim())] == 1);
  return is_cut ? layout.moved_to(dim) : Layout();
}

BroadcastCut broadcast_cut(const TensorArgument& a, const TensorArgument& b,
                           const DeviceMesh& mesh) {
  BroadcastCut cut{at::infer_size(a.sizes(), b.sizes()), {}};
  if (cut.sizes.empty()) return cut;
  const int64_t dim = outermost_dim(cut.sizes);
  const auto* pieces = pieces_along(dim, a, cut.sizes.size());
  if (!pieces) pieces = pieces_along(dim, b, cut.sizes.size());
  cut.layout = {Shard(dim), pieces
                                ? *pieces
                                : even_partition(cut.sizes[static_cast<size_t>(dim)], mesh.size())};
  return cut;
}

Tensor take_rows(const Tensor& own, int64_t dim, const Layout& layout, const Partition& counts,
                 const DeviceMesh& mesh) {
  const int64_t rank = mesh.rank();
  if (!layout.is_shard()) {
    return own.narrow(dim, offset_of(counts, rank), counts[static_cast<size_t>(rank)]);
  }
  const Tensor rows = is_shard_tensor(own) && is_cut_along(own, dim) ? uncut(own, dim) : own;
  std::vector<std::vector<Rows>> held;
  for (int64_t peer = 0; peer < mesh.size(); ++peer) {
    const int64_t begin = offset_of(layout.partition, peer);
    held.push_back({{begin, begin + layout.partition[static_cast<size_t>(peer)]}});
  }
  return move_rows(rows, dim, held, counts, mesh);
}

int64_t count_set(const Tensor& mask) { return at::count_nonzero(mask).item<int64_t>(); }

}  // namespace shard
