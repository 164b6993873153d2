// SPDX-License-Identifier: Apache-2.0
#include <shard/bottom.h>
#include <shard/count_rows.h>
#include <shard/primitives.h>

#include <algorithm>
#include <numeric>

#include "tensor/grid.h"

namespace shard {
namespace {

using at::Tensor;

std::vector<int64_t> counted(size_t n) {
  std::vector<int64_t> result(n);
  std::iota(result.begin(), result.end(), 0);
  return result;
}

bool is_among(const std::vector<int64_t>& dims, const ShardTensorSpec& spec) {
  return spec.is_shard() && std::find(dims.begin(), dims.end(), spec.shard_dim()) != dims.end();
}

/// The 1-d mesh over the dims of all levels that `counts` names.
template <class Counts>
DeviceMesh mesh_over(const std::vector<Level>& levels, const Counts& counts) {
  std::vector<int64_t> dims;
  for (const auto& level : levels) {
    if (!counts(*level.spec)) continue;
    dims.insert(dims.end(), level.mesh.root_dims().begin(), level.mesh.root_dims().end());
  }
  std::sort(dims.begin(), dims.end());
  return dims.empty() ? DeviceMesh() : levels[0].mesh.root().flattened(dims);
}

}  // namespace

Bottom::Bottom(const Tensor& x) : local(x), grid_(std::make_unique<const Grid>(Grid::of(x))) {
  while (is_shard_tensor(local)) {
    if (spec_of(local)->is_partial()) {
      local = redistribute(local, dual_spec(spec_of(local)));
    }
    levels_.push_back({mesh_of(local), spec_of(local)});
    local = to_local(local);
  }
}

Bottom::~Bottom() = default;

Tensor Bottom::wrapped(Tensor y) const {
  std::for_each(levels_.rbegin(), levels_.rend(),
                [&](const Level& level) { y = from_local(y, level.mesh, level.spec); });
  return y;
}

Tensor Bottom::wrapped(Tensor y, const std::map<int64_t, Partition>& partitions) const {
  std::for_each(levels_.rbegin(), levels_.rend(), [&](const Level& level) {
    Shape shape(y.sizes());
    Partition partition = level.spec->partition();
    if (level.spec->is_shard()) {
      auto& rows = shape[static_cast<size_t>(level.spec->shard_dim())];
      const auto changed = partitions.find(level.spec->shard_dim());
      if (changed != partitions.end()) partition = changed->second;
      if (level.mesh.size() == 1) partition = {rows};
      rows = total_of(partition);
    }
    y = from_local(y, level.mesh, level.spec->with(level.spec->placement(), shape, partition));
  });
  return y;
}

std::vector<Cut> Bottom::cuts_along(const std::vector<int64_t>& dims) const {
  std::vector<Cut> cuts;
  for (const Level& level : levels_) {
    if (!is_among(dims, *level.spec) || level.mesh.size() == 1) continue;
    cuts.push_back({level.spec->shard_dim(), level.spec->partition(), {}});
  }
  if (cuts.size() < 2) {
    for (auto& cut : cuts) cut.places = counted(cut.owned.size());
    return cuts;
  }
  const DeviceMesh mesh = mesh_across(dims);
  for (auto& cut : cuts) {
    const auto is_same = [&](const Grid::Cut& c) { return c.placement.is_shard(cut.dim); };
    const auto of_grid = std::find_if(grid_->cuts.begin(), grid_->cuts.end(), is_same);
    for (int64_t i = 0; i < mesh.size(); ++i) {
      cut.places.push_back(grid_->place(*of_grid, root_rank(mesh, i)));
    }
  }
  return cuts;
}

DeviceMesh Bottom::mesh_across(const std::vector<int64_t>& dims) const {
  return mesh_over(levels_, [&](const ShardTensorSpec& spec) { return is_among(dims, spec); });
}

DeviceMesh Bottom::mesh_beside(const std::vector<int64_t>& dims) const {
  return mesh_over(levels_, [&](const ShardTensorSpec& spec) {
    return spec.is_shard() && !is_among(dims, spec);
  });
}

std::vector<int64_t> Bottom::counts_across(const std::vector<int64_t>& dims) const {
  std::vector<int64_t> counts;
  const DeviceMesh mesh = mesh_across(dims);
  for (int64_t i = 0; i < mesh.size(); ++i) {
    const Box box = grid_->box(root_rank(mesh, i));
    counts.push_back(1);
    for (const int64_t dim : dims) counts.back() *= box.size[static_cast<size_t>(dim)];
  }
  return counts;
}

Rows Bottom::own(int64_t dim) const {
  const Box box = grid_->box(grid_->mesh.rank());
  const auto d = static_cast<size_t>(dim);
  return {box.begin[d], box.begin[d] + box.size[d]};
}

/// A flattened mesh knows its ranks by their places in the root.
int64_t Bottom::root_rank(const DeviceMesh& mesh, int64_t rank) const {
  if (mesh.layout() == grid_->mesh.layout()) return rank;
  return mesh.layout().world_ranks[static_cast<size_t>(rank)];
}

Tensor with_whole_dim(const Tensor& x, int64_t dim) {
  Grid target = Grid::of(x);
  const auto is_cut = [&](int64_t d) {
    return std::any_of(target.cuts.begin(), target.cuts.end(),
                       [&](const Grid::Cut& cut) { return cut.placement.is_shard(d); });
  };
  if (!is_cut(dim)) return x;
  int64_t best = -1;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (x.size(d) < 2 || is_cut(d)) continue;
    if (best < 0 || x.size(d) >= x.size(best)) best = d;
  }
  for (auto& cut : target.cuts) {
    if (!cut.placement.is_shard(dim)) continue;
    const auto ranks = static_cast<int64_t>(cut.partition.size());
    cut.placement = best < 0 ? Replicate() : Shard(best);
    cut.partition = best < 0 ? Partition{} : even_partition(x.size(best), ranks);
  }
  return redistribute(x, target);
}

Tensor whole(const Tensor& parameter) {
  return parameter.defined() && is_shard_tensor(parameter) ? ShardTensor(parameter).full()
                                                           : parameter;
}

}  // namespace shard
