// SPDX-License-Identifier: Apache-2.0
// Distances of all pairs of rows of one tensor (pdist): of (N, M) the N * (N - 1) / 2 pairs i < j,
// ordered by i. Every rank has all rows and makes the pairs that begin with its own.
#include <ATen/ops/_cdist_forward.h>
#include <ATen/ops/_pdist_forward.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/pdist_ops.h>
#include <ATen/ops/triu_indices.h>
#include <shard/patch.h>

namespace shard {
namespace {

using at::Tensor;

/// How many pairs begin with the rows of every rank.
Partition pairs_of(const Partition& rows, int64_t n) {
  Partition pairs;
  int64_t begin = 0;
  for (const int64_t size : rows) {
    pairs.push_back(size * (n - 1 - begin) - size * (size - 1) / 2);
    begin += size;
  }
  return pairs;
}

Tensor pdist(const Tensor& given, double p) {
  check<SpecMismatch>(given.dim() == 2, "aten::_pdist_forward", "got a tensor of ", given.sizes(),
                      "; expected (rows, columns). Correct the sizes.");
  const auto& mesh = mesh_of(given);
  Tensor x = redistribute(given, dual_spec(spec_of(given)));
  const int64_t n = x.size(0);
  if (mesh.size() > 1 && spec_of(x)->is_shard() && spec_of(x)->shard_dim() == 1) {
    x = redistribute(x, spec_of(x)->with(Shard(0), x.sizes()));
  }
  const auto& spec = spec_of(x);
  if (mesh.size() == 1 || !spec->is_shard()) {
    const Tensor y = at::_pdist_forward(to_local(x).contiguous(), p);
    return from_local(y, mesh, spec->with(Replicate(), y.sizes()));
  }
  constexpr int64_t kDirectly = 2;  // not by a product of matrices: as _pdist_forward does
  const Tensor all = to_local(redistribute(x, spec->replicated()), Partial());
  const int64_t begin = spec->offset(mesh.rank());
  const int64_t size = spec->local_size(mesh.rank());
  const Tensor distances = at::_cdist_forward(to_local(x), all, p, kDirectly);  // (own rows, N)
  const auto options = at::TensorOptions(at::kLong).device(x.device());
  const Tensor places = at::triu_indices(size, n, begin + 1, options);
  const Tensor y =
      distances.flatten().index_select(0, places.select(0, 0) * n + places.select(0, 1));
  return from_local(y, mesh,
                    spec->with(Shard(0), {n * (n - 1) / 2}, pairs_of(spec->partition(), n)));
}

}  // namespace

SHARD_PATCH(pairs_of_rows) {
  const char* const note = "the rows become whole on every rank, the pairs are cut";
  patch.function<at::_ops::pdist>(pdist).shards("any dim").notes(note);
  patch.function<at::_ops::_pdist_forward>(pdist).shards("any dim").notes(note);
}

}  // namespace shard
