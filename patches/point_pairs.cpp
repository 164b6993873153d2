// SPDX-License-Identifier: Apache-2.0
// All pairs of neighbours within a radius: a list whose length is in the values. The search keeps a
// fixed number of neighbours a query and is repeated with twice as many until none is cut off; then
// every rank lists the pairs of its queries, and the ranks tell each other how many these are.
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <shard/patch.h>
#include <shard/points.h>
#include <shard/route.h>
#include <shard/window_patch.h>

#include <algorithm>

namespace shard {
namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;

/// Of (Q, k) indices, negative where there is none: (2, E), the row and the index of every other.
struct Listed {
  using schema = Tensor(const Tensor&);
  static constexpr const char* name = "shard::_listed";
  static constexpr const char* overload_name = "";

  static const c10::TypedOperatorHandle<schema>& op() {
    static const auto op = detail::handle<Listed>().typed<schema>();
    return op;
  }
  static Tensor call(const Tensor& indices) { return op().call(indices); }
  static Tensor redispatch(c10::DispatchKeySet keys, const Tensor& indices) {
    return op().redispatch(keys, indices);
  }
};

Tensor listed(const Tensor& indices) {
  const Tensor places = indices.ge(0).nonzero();  // (E, 2), row by row
  const Tensor flat = places.select(1, 0) * indices.size(1) + places.select(1, 1);
  return at::stack({places.select(1, 0), indices.reshape({-1}).index_select(0, flat)});
}

Tensor listed_of_shards(const Tensor& indices) {
  const at::NoGradGuard guard;
  auto input = sharded_input(indices);
  if (input.dim == 1) {  // a query's neighbours together
    input = sharded_input(redistribute(input.tensor, input.spec->with(Shard(0), indices.sizes())));
  }
  const Tensor local = Listed::call(raw_local(input.tensor));
  if (input.dim < 0) {
    return from_local(local, input.mesh, input.spec->with(Replicate(), local.sizes()));
  }
  const auto options = innermost(indices).options().dtype(at::kLong);
  const Tensor counts = all_gather_stack(at::tensor({local.size(1)}, options), input.mesh).cpu();
  const auto* first = counts.const_data_ptr<int64_t>();
  const Partition partition(first, first + counts.numel());
  const int64_t offset = input.spec->offset(input.mesh.rank());
  const Tensor rows = at::stack({local.select(0, 0) + offset, local.select(0, 1)});
  const int64_t total = offset_of(partition, input.mesh.size());
  return from_local(rows, input.mesh, input.spec->with(Shard(1), {2, total}, partition));
}

Pair pairs_of_sets(const Tensor& points, const Tensor& queries, double radius) {
  check<SpecMismatch>(points.dim() == 2, "shard::radius_pairs", "got points of ", points.sizes(),
                      "; expected (N, D). Call it for each set of a batch.");
  constexpr int64_t kFirst = 32;
  const int64_t n = std::max<int64_t>(points.size(0), 1);
  Tensor indices;
  {
    const at::NoGradGuard guard;
    for (int64_t most = std::min(kFirst, n);; most = std::min(2 * most, n)) {
      indices = std::get<0>(radius_search(points, queries, radius, most));
      if (most == n || queries.size(0) == 0) break;
      if (indices.select(1, most - 1).amax().item<int64_t>() < 0) break;
    }
  }
  const Tensor pairs = Listed::call(indices);
  const Tensor offsets =
      queries.index_select(0, pairs.select(0, 0)) - points.index_select(0, pairs.select(0, 1));
  return {pairs, at::linalg_vector_norm(offsets, 2, at::IntArrayRef{-1})};
}

TORCH_LIBRARY_FRAGMENT(shard, m) {
  m.def("_listed(Tensor indices) -> Tensor");
  m.def(
      "radius_pairs(Tensor points, Tensor queries, float radius)"
      " -> (Tensor pairs, Tensor distances)",
      pairs_of_sets);
}
TORCH_LIBRARY_IMPL(shard, CompositeExplicitAutograd, m) { m.impl("_listed", listed); }

}  // namespace

std::tuple<Tensor, Tensor> radius_pairs(const Tensor& points, const Tensor& queries,
                                        double radius) {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("shard::radius_pairs", "")
                                 .typed<Pair(const Tensor&, const Tensor&, double)>();
  return handle.call(points, queries, radius);
}

SHARD_PATCH(point_pairs) {
  patch.function<Listed>(listed_of_shards)
      .shards("queries")
      .notes("the ranks tell each other how many pairs they have");
}

}  // namespace shard
