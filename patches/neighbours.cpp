// SPDX-License-Identifier: Apache-2.0
// The search of neighbours in point sets. Where points are cut, every rank searches its own ones
// for its queries; then blocks of points come from the other ranks, one at a time, each straight
// from its owner and only if a box around it is near enough to hold a nearer point. So a rank holds
// its own points and one block.
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <shard/nearest.h>
#include <shard/patch.h>
#include <shard/route.h>
#include <shard/window_patch.h>

#include <algorithm>

namespace shard {
namespace {

using at::Tensor;
using Result = std::tuple<Tensor, Tensor>;

/// The op below the public ones: what is nearer than `known` (none, or squared distances and
/// indices of an earlier call; then k and radius are theirs), points being numbered from `first`.
/// Not differentiable.
struct Neighbours {
  using schema = Result(const Tensor&, const Tensor&, int64_t, double, int64_t, at::TensorList);
  static constexpr const char* name = "shard::_neighbours";
  static constexpr const char* overload_name = "";

  static const c10::TypedOperatorHandle<schema>& op() {
    static const auto op = detail::handle<Neighbours>().typed<schema>();
    return op;
  }
  static Result call(const Tensor& points, const Tensor& queries, int64_t k, double radius,
                     int64_t first, at::TensorList known) {
    return op().call(points, queries, k, radius, first, known);
  }
  static Result redispatch(c10::DispatchKeySet keys, const Tensor& points, const Tensor& queries,
                           int64_t k, double radius, int64_t first, at::TensorList known) {
    return op().redispatch(keys, points, queries, k, radius, first, known);
  }
};

Result search(const Tensor& points, const Tensor& queries, int64_t k, double radius, int64_t first,
              at::TensorList known) {
  auto sizes = queries.sizes().vec();
  sizes.back() = k;
  const Nearest found =
      known.empty() ? Nearest::none(sizes, radius, queries.options()) : Nearest{known[0], known[1]};
  const auto result = with_points(found, points, queries, first);
  return {result.squared, result.indices};
}

TORCH_LIBRARY_FRAGMENT(shard, m) {
  m.def(
      "_neighbours(Tensor points, Tensor queries, int k, float radius, int first, Tensor[] known)"
      " -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(shard, CompositeExplicitAutograd, m) { m.impl("_neighbours", search); }

// ---- which blocks of points are near

/// The ends of a set of coordinates, (2 D) float64; an empty set lies nowhere.
Tensor box_of(const Tensor& coordinates) {
  const Tensor rows = coordinates.flatten(0, -2);
  const auto options = innermost(coordinates).options().dtype(at::kDouble);
  if (rows.size(0) == 0) return at::zeros({2 * rows.size(1)}, options);
  return plain_numbers(at::cat({rows.amin({0}), rows.amax({0})})).to(at::kDouble);
}

/// NOTE [Exact pruning]: no point of box `a` is nearer to one of box `b` than this.
double squared_gap(const double* a, const double* b, int64_t dims) {
  double sum = 0;
  for (int64_t d = 0; d < dims; ++d) {
    const double gap = std::max({0.0, a[d] - b[dims + d], b[d] - a[dims + d]});
    sum += gap * gap;
  }
  return sum;
}

/// For every rank whose points can be nearer than what it has found, the same on every rank.
class Demand {
 public:
  /// Unless it tells much (the boxes are larger than the points), all are near.
  Demand(const Tensor& points, const Tensor& queries, const Tensor& squared, const DeviceMesh& mesh,
         bool tells_much) {
    const int64_t dims = points.size(-1);
    ranks_ = mesh.size();
    is_near_.assign(static_cast<size_t>(ranks_ * ranks_), true);
    if (!tells_much) return;
    const bool has_queries = squared.numel() > 0;
    const Tensor worst = has_queries ? plain_numbers(squared.select(-1, -1).amax()).view({1})
                                     : at::zeros({1}, innermost(squared).options());
    const Tensor all =
        all_gather_stack(at::cat({box_of(points), box_of(queries), worst}), mesh).cpu();
    const auto* numbers = all.const_data_ptr<double>();
    const auto of = [&](int64_t rank) { return numbers + rank * (4 * dims + 1); };
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      for (int64_t owner = 0; owner < mesh.size(); ++owner) {
        const double gap = squared_gap(of(rank) + 2 * dims, of(owner), dims);
        is_near_[static_cast<size_t>(rank * ranks_ + owner)] = !(gap > of(rank)[4 * dims]);
      }
    }
  }
  bool is_near(int64_t rank, int64_t owner) const {
    return is_near_[static_cast<size_t>(rank * ranks_ + owner)];
  }

 private:
  int64_t ranks_ = 0;
  std::vector<bool> is_near_;
};

// ---- over the ranks

Tensor moved(const Tensor& x, Placement placement, const Partition& partition) {
  return redistribute(x, spec_of(x)->with(placement, x.sizes(), partition));
}

class Search {
 public:
  Search(const Tensor& points, const Tensor& queries, int64_t k, double radius, int64_t first,
         at::TensorList known)
      : mesh_(mesh_of(is_shard_tensor(points) ? points : queries)),
        points_(cut_over_sets(points)),
        queries_(cut_over_sets(queries)),
        k_(k),
        radius_(radius),
        first_(first),
        rows_(points.dim() - 2),
        known_(known.vec()) {}

  Result operator()() {
    if (rows_ == 1 && mesh_.size() > 1) align_batches();
    const bool is_cut = mesh_.size() > 1 && spec_of(points_)->placement().is_shard(rows_);
    const auto original = spec_of(queries_);
    if (is_cut && original->is_replicate()) queries_ = evenly(queries_);
    for (auto& known : known_) known = like_queries(promote(known, mesh_));
    const auto found = is_cut ? over_blocks() : wrapped(search_in(raw_local(points_), first_));
    if (same(original, spec_of(queries_))) return found;
    const auto& [squared, indices] = found;
    return {redistribute(squared, original->with(Replicate(), squared.sizes())),
            redistribute(indices, original->with(Replicate(), indices.sizes()))};
  }

 private:
  Tensor evenly(const Tensor& x) const {
    return moved(x, Shard(rows_), even_partition(x.size(rows_), mesh_.size()));
  }
  /// Shard or Replicate, not along the coordinates.
  Tensor cut_over_sets(const Tensor& x) const {
    const Tensor whole = sharded_input(promote(x, mesh_)).tensor;
    const bool splits_points = spec_of(whole)->placement().is_shard(x.dim() - 1);
    if (!splits_points) return whole;
    return moved(whole, Shard(x.dim() - 2), even_partition(x.size(-2), mesh_.size()));
  }
  /// Cut along the batch, both are.
  void align_batches() {
    for (const auto& x : {queries_, points_}) {
      if (!spec_of(x)->placement().is_shard(0)) continue;
      const Partition partition = spec_of(x)->partition();
      queries_ = moved(queries_, Shard(0), partition);
      points_ = moved(points_, Shard(0), partition);
      return;
    }
  }
  Tensor like_queries(const Tensor& found) const {
    const auto& spec = spec_of(queries_);
    return moved(found, spec->placement(), spec->partition());
  }
  Result wrapped(const Result& local) const {
    auto sizes = queries_.sizes().vec();
    sizes.back() = k_;
    const auto& queries = spec_of(queries_);
    const auto spec = queries->with(queries->placement(), sizes, queries->partition());
    return {from_local(std::get<0>(local), mesh_, spec),
            from_local(std::get<1>(local), mesh_, spec)};
  }
  Result search_in(const Tensor& block, int64_t first) const {
    std::vector<Tensor> known;
    for (const auto& tensor : known_) known.push_back(raw_local(tensor));
    return Neighbours::call(block, raw_local(queries_), k_, radius_, first, known);
  }

  Result over_blocks() {
    const auto& spec = spec_of(points_);
    const int64_t rank = mesh_.rank();
    const Tensor& own = raw_local(points_);
    Result found = search_in(own, first_ + spec->offset(rank));
    const bool tells_much = 4 * points_.size(-1) * mesh_.size() < points_.numel() / mesh_.size();
    const Demand demand(own, raw_local(queries_), std::get<0>(found), mesh_, tells_much);
    const auto travels = [&](int64_t owner, int64_t to) {
      return spec->local_size(owner) > 0 && spec_of(queries_)->local_shape(to)[index()] > 0 &&
             demand.is_near(to, owner);
    };
    for (int64_t step = 1; step < mesh_.size(); ++step) {
      const int64_t to = (rank + step) % mesh_.size();
      const int64_t owner = (rank - step + mesh_.size()) % mesh_.size();
      std::vector<Message> sends;
      std::vector<Message> receives;
      if (travels(rank, to)) sends.push_back({static_cast<int>(to), own});
      if (travels(owner, rank)) {
        const Tensor block = empty_of_shape(own, spec->local_shape(owner));
        receives.push_back({static_cast<int>(owner), block});
      }
      mesh_.comm().exchange(sends, receives);
      if (receives.empty()) continue;
      const std::vector<Tensor> known{std::get<0>(found), std::get<1>(found)};
      found = Neighbours::call(receives[0].tensor, raw_local(queries_), k_, radius_,
                               first_ + spec->offset(owner), known);
    }
    return wrapped(found);
  }
  size_t index() const { return static_cast<size_t>(rows_); }

  DeviceMesh mesh_;
  Tensor points_, queries_;
  int64_t k_;
  double radius_;
  int64_t first_;
  int64_t rows_;  ///< the dim of the points
  std::vector<Tensor> known_;
};

Result search_shards(const Tensor& points, const Tensor& queries, int64_t k, double radius,
                     int64_t first, at::TensorList known) {
  const at::NoGradGuard guard;
  return Search(points, queries, k, radius, first, known)();
}

}  // namespace

SHARD_PATCH(neighbours) {
  patch.function<Neighbours>(search_shards)
      .shards("batch", "points", "queries")
      .notes("blocks of points travel to the ranks whose queries they are near to");
}

}  // namespace shard
