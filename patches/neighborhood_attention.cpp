// SPDX-License-Identifier: Apache-2.0
// neighborhood_attention: an op of the library's own, on plain tensors and on ShardTensors. A rank
// fetches the keys and values around its queries, in one exchange a cut dim, and attends to them.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <shard/exchange.h>
#include <shard/neighborhood_attention.h>
#include <shard/patch.h>

#include <algorithm>
#include <cmath>

namespace shard {
namespace {

using at::Tensor;
using Parts = std::vector<NeighborhoodPart>;

constexpr const char* kName = "neighborhood_attention";

/// As at::_ops has them for ops of LibTorch.
struct Op {
  using schema = Tensor(const Tensor&, const Tensor&, const Tensor&, at::IntArrayRef,
                        at::IntArrayRef, c10::List<bool>, std::optional<double>);
  static constexpr const char* name = "shard::neighborhood_attention";
  static constexpr const char* overload_name = "";
  template <class... Args>
  static Tensor redispatch(c10::DispatchKeySet keys, Args&&... args) {
    return detail::handle<Op>().typed<schema>().redispatch(keys, std::forward<Args>(args)...);
  }
};

/// One value for every dim, of as many or a single one.
int64_t value_of(const char* what, at::IntArrayRef list, size_t dim, size_t ndim) {
  check<SpecMismatch>(list.size() == 1 || list.size() == ndim, kName, what, ": got ", list.size(),
                      " values; expected ", ndim, ", one a dim of points, or a single one.");
  return list[list.size() == 1 ? 0 : dim];
}

void check_shapes(const Tensor& q, const Tensor& k, const Tensor& v) {
  const bool fit = q.dim() >= 4 && q.dim() <= 6 && k.sizes() == q.sizes() && v.dim() == q.dim() &&
                   v.sizes().slice(0, static_cast<size_t>(v.dim()) - 1) ==
                       q.sizes().slice(0, static_cast<size_t>(q.dim()) - 1);
  check<SpecMismatch>(fit, kName, "got query ", q.sizes(), ", key ", k.sizes(), " and value ",
                      v.sizes(),
                      "; expected (batch, 1 to 3 dims of points, heads, e), the same and the same "
                      "up to the last dim. Permute or pad them.");
  check<SpecMismatch>(k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(),
                      kName, "got query, key and value of ", q.scalar_type(), ", ", k.scalar_type(),
                      " and ", v.scalar_type(), "; expected one dtype. Convert them.");
}

Parts whole_parts(const Tensor& q, at::IntArrayRef kernel, at::IntArrayRef dilation,
                  const c10::List<bool>& is_causal) {
  Parts parts;
  const std::vector<int64_t> causal(is_causal.begin(), is_causal.end());
  const auto ndim = static_cast<size_t>(q.dim() - 3);
  for (size_t d = 0; d < ndim; ++d) {
    const int64_t points = q.size(static_cast<int64_t>(d) + 1);
    const Neighborhood window{points, value_of("kernel_size", kernel, d, ndim),
                              value_of("dilation", dilation, d, ndim),
                              value_of("is_causal", causal, d, ndim) != 0};
    check<SpecMismatch>(window.kernel >= 1 && window.dilation >= 1 &&
                            window.kernel * window.dilation <= std::max<int64_t>(points, 1),
                        kName, "got kernel_size ", window.kernel, " and dilation ", window.dilation,
                        " along ", points,
                        " points; expected both at least 1 and their product at most the points. "
                        "Take a smaller kernel.");
    parts.push_back({window, {0, points}, {0, points}});
  }
  return parts;
}

double scale_of(const Tensor& q, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
}

Tensor plain(const Tensor& query, const Tensor& key, const Tensor& value, at::IntArrayRef kernel,
             // NOLINTNEXTLINE(performance-unnecessary-value-param): as the schema has it
             at::IntArrayRef dilation, c10::List<bool> is_causal, std::optional<double> scale) {
  check_shapes(query, key, value);
  return attend_to_neighbors(query, key, value, whole_parts(query, kernel, dilation, is_causal),
                             scale_of(query, scale));
}

/// How query, key and value are cut: as the first of them that is, but never along the features.
/// `may_cut_points`: no other mesh dim does.
Layout common_layout(const std::vector<Tensor>& tensors, int64_t ranks, bool may_cut_points) {
  for (const Tensor& t : tensors) {
    if (!is_shard_tensor(t) || !spec_of(t)->is_shard()) continue;
    const Layout layout(*spec_of(t));
    if (layout.dim() < t.dim() - 1) return layout;
  }
  for (const Tensor& t : tensors) {
    if (!is_shard_tensor(t) || !spec_of(t)->is_shard()) continue;
    if (!may_cut_points || is_shard_tensor(raw_local(t))) return {};
    return {Shard(1), even_partition(t.size(1), ranks)};
  }
  return {};
}

/// Keys and values of the rows that the local queries see; `part` becomes this rank's.
std::pair<Tensor, Tensor> with_halo(const Tensor& k, const Tensor& v, int64_t dim,
                                    const Partition& partition, const DeviceMesh& mesh,
                                    NeighborhoodPart& part) {
  std::vector<std::vector<Rows>> wanted;
  std::vector<Rows> queries;
  int64_t begin = part.queries.begin;
  for (const int64_t rows : partition) {
    queries.push_back({begin, begin + rows});
    wanted.push_back({part.window.seen_by(queries.back())});
    begin += rows;
  }
  const HaloPlan plan = make_halo_plan(dim, partition, wanted);
  const auto rank = static_cast<size_t>(mesh.rank());
  const Tensor both = at::cat({k, v}, -1);
  const Tensor rows = assemble(exchange_halo(both, plan, mesh), plan, mesh.rank());
  part.queries = queries[rank];
  part.keys = wanted[rank][0];
  return {rows.narrow(-1, 0, k.size(-1)), rows.narrow(-1, k.size(-1), v.size(-1))};
}

/// Goes down the levels of a mesh of several dims.
Tensor attend(std::vector<Tensor> qkv, Parts parts, double scale, bool is_outermost) {
  const auto found =
      std::find_if(qkv.begin(), qkv.end(), [](const Tensor& t) { return is_shard_tensor(t); });
  if (found == qkv.end()) return attend_to_neighbors(qkv[0], qkv[1], qkv[2], parts, scale);
  const DeviceMesh mesh = mesh_of(*found);
  const Layout layout = common_layout(qkv, mesh.size(), is_outermost);
  for (Tensor& t : qkv) {
    t = promote(t, mesh);
    t = redistribute(t, spec_of(t)->with(layout.placement, t.sizes(), layout.partition));
  }
  const auto spec = spec_of(qkv[0])->with(
      layout.placement,
      [&] {
        Shape shape(qkv[0].sizes());
        shape.back() = qkv[2].size(-1);
        return shape;
      }(),
      layout.partition);
  Tensor k = to_local(qkv[1]);
  Tensor v = to_local(qkv[2]);
  const int64_t dim = layout.is_shard() ? layout.dim() - 1 : -1;
  if (dim >= 0 && dim < std::ssize(parts)) {
    std::tie(k, v) =
        with_halo(k, v, dim + 1, layout.partition, mesh, parts[static_cast<size_t>(dim)]);
  }
  return from_local(attend({to_local(qkv[0]), k, v}, parts, scale, false), mesh, spec);
}

Tensor sharded(const Tensor& query, const Tensor& key, const Tensor& value, at::IntArrayRef kernel,
               // NOLINTNEXTLINE(performance-unnecessary-value-param): as the schema has it
               at::IntArrayRef dilation, c10::List<bool> is_causal, std::optional<double> scale) {
  check_shapes(query, key, value);
  return attend({query, key, value}, whole_parts(query, kernel, dilation, is_causal),
                scale_of(query, scale), true);
}

TORCH_LIBRARY_FRAGMENT(shard, library) {
  library.def(
      "neighborhood_attention(Tensor query, Tensor key, Tensor value, int[] kernel_size, "
      "int[] dilation=[1], bool[] is_causal=[False], float? scale=None) -> Tensor",
      plain);
}

}  // namespace

Tensor neighborhood_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                              at::IntArrayRef kernel_size, at::IntArrayRef dilation,
                              const std::vector<bool>& is_causal, std::optional<double> scale) {
  static const auto op = detail::handle<Op>().typed<Op::schema>();
  c10::List<bool> causal;
  for (const bool value : is_causal) causal.push_back(value);
  return op.call(query, key, value, kernel_size, dilation, causal, scale);
}

SHARD_PATCH(neighborhood_attention) {
  patch.function<Op>(sharded)
      .shards("any dim", "features (moved to the points)")
      .notes("one exchange of the halo of keys and values");
}

}  // namespace shard
