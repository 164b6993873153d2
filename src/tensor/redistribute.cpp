// SPDX-License-Identifier: Apache-2.0
#include "tensor/redistribute.h"

#include <ATen/ops/zeros_like.h>
#include <shard/error.h>
#include <shard/pieces.h>
#include <shard/primitives.h>

#include <algorithm>

#include "tensor/impl.h"

namespace shard {
namespace {

using at::Tensor;

Tensor gather(const Tensor& local, const ShardTensorSpec& from, const DeviceMesh& mesh) {
  const Tensor whole = empty_of_shape(local, Shape(from.global_shape()));
  mesh.comm().all_gather_v(local, pieces_of(whole, from.shard_dim(), from.partition()));
  return whole;
}

Tensor reduce(const Tensor& local, const ShardTensorSpec& from, const DeviceMesh& mesh) {
  Tensor sum = local.clone();
  mesh.comm().all_reduce(sum, from.placement().op());
  return sum;
}

Tensor reduce_scatter(const Tensor& local, const ShardTensorSpec& from, const ShardTensorSpec& to,
                      const DeviceMesh& mesh) {
  Tensor piece = empty_of_shape(local, to.local_shape(mesh.rank()));
  mesh.comm().reduce_scatter_v(pieces_of(local, to.shard_dim(), to.partition()), piece,
                               from.placement().op());
  return piece;
}

Tensor slice(const Tensor& local, const ShardTensorSpec& to, const DeviceMesh& mesh) {
  const int64_t rank = mesh.rank();
  return local.narrow(to.shard_dim(), to.offset(rank), to.local_size(rank)).clone();
}

/// Shard(i) -> Shard(j): every rank cuts its rows along j and receives its columns from all.
Tensor transpose(const Tensor& local, const ShardTensorSpec& from, const ShardTensorSpec& to,
                 const DeviceMesh& mesh) {
  const Tensor result = empty_of_shape(local, to.local_shape(mesh.rank()));
  mesh.comm().all_to_all_v(pieces_of(local, to.shard_dim(), to.partition()),
                           pieces_of(result, from.shard_dim(), from.partition()));
  return result;
}

/// Same dim, other boundaries: only ranks whose old and new intervals overlap talk to each other.
Tensor shift_boundaries(const Tensor& local, const ShardTensorSpec& from, const ShardTensorSpec& to,
                        const DeviceMesh& mesh) {
  std::vector<std::vector<Rows>> held;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    held.push_back({{from.offset(rank), from.offset(rank) + from.local_size(rank)}});
  }
  return move_rows(local, from.shard_dim(), held, to.partition(), mesh);
}

/// A contribution per rank whose reduction is the value: the value itself for avg, max and min; for
/// a sum rank 0 keeps it and the others have zeros.
Tensor as_partial(const Tensor& whole, const ShardTensorSpec& to, const DeviceMesh& mesh) {
  const bool keep = to.placement().op() != ReduceOp::Sum || mesh.rank() == 0;
  return keep ? whole.clone() : at::zeros_like(whole);
}

Rows overlap(const Rows& a, const Rows& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

Rows interval_of(const Partition& partition, int64_t rank) {
  const int64_t begin = offset_of(partition, rank);
  return {begin, begin + partition[static_cast<size_t>(rank)]};
}

}  // namespace

Tensor move_rows(const Tensor& own, int64_t dim, const std::vector<std::vector<Rows>>& held,
                 const Partition& target, const DeviceMesh& mesh) {
  const int64_t me = mesh.rank();
  const Rows mine = interval_of(target, me);
  Shape shape(own.sizes());
  shape[static_cast<size_t>(dim)] = mine.size();
  const Tensor result = empty_of_shape(own, shape);
  std::vector<Message> sends;
  std::vector<Message> receives;
  int64_t first = 0;
  for (const Rows& rows : held[static_cast<size_t>(me)]) {
    for (int64_t peer = 0; peer < mesh.size(); ++peer) {
      const Rows part = overlap(rows, interval_of(target, peer));
      if (part.size() <= 0) continue;
      const int64_t begin = first + part.begin - rows.begin;
      sends.push_back({static_cast<int>(peer), own.narrow(dim, begin, part.size())});
    }
    first += rows.size();
  }
  for (int64_t peer = 0; peer < mesh.size(); ++peer) {
    for (const Rows& rows : held[static_cast<size_t>(peer)]) {
      const Rows part = overlap(rows, mine);
      if (part.size() <= 0) continue;
      receives.push_back(
          {static_cast<int>(peer), result.narrow(dim, part.begin - mine.begin, part.size())});
    }
  }
  mesh.comm().exchange(sends, receives);
  return result;
}

Tensor redistribute_local(const Tensor& local, const ShardTensorSpec& from,
                          const ShardTensorSpec& to, const DeviceMesh& mesh) {
  if (from.same_layout(to)) return local;
  if (to.is_shard() && impl_of(local) && is_cut_along(local, to.shard_dim())) {
    return redistribute_local(uncut(local, to.shard_dim()), from, to, mesh);
  }
  if (mesh.size() == 1) return local;
  if (to.is_partial()) {
    check<SpecMismatch>(!from.is_partial(), "redistribute", "got ", from.placement(), " -> ",
                        to.placement(),
                        "; expected one of them not Partial. Go through Replicate().");
    return as_partial(from.is_shard() ? gather(local, from, mesh) : local, to, mesh);
  }
  if (from.is_replicate()) return slice(local, to, mesh);
  if (from.is_partial()) {
    return to.is_replicate() ? reduce(local, from, mesh) : reduce_scatter(local, from, to, mesh);
  }
  if (to.is_replicate()) return gather(local, from, mesh);
  return from.shard_dim() == to.shard_dim() ? shift_boundaries(local, from, to, mesh)
                                            : transpose(local, from, to, mesh);
}

}  // namespace shard
