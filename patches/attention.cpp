// SPDX-License-Identifier: Apache-2.0
// scaled_dot_product_attention. Cut along the batch or the heads every rank runs LibTorch's op. A
// cut sequence of queries next to whole keys too; next to cut keys, keys and values travel around
// the ranks (<shard/ring_attention.h>); whole queries find in every rank's keys a part of the
// result.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <shard/patch.h>
#include <shard/ring_attention.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace shard {
namespace {

using at::Tensor;

constexpr const char* kName = "scaled_dot_product_attention";

struct Attention {
  Tensor q, k, v, mask;  // mask may be undefined
  double dropout = 0;
  std::optional<double> scale;
  bool has_grouped_heads = false;
  bool has_all_queries = true;  ///< no mesh dim cuts them
  /// Whether the mask is alike along each dim of q, told from the global sizes: where two mesh dims
  /// cut the queries, the inner one finds a single row on some ranks.
  std::vector<bool> mask_is_alike = {};

  int64_t ndim() const { return q.dim(); }
  int64_t query_dim() const { return q.dim() - 2; }
  int64_t key_dim() const { return q.dim() - 2; }
  int64_t head_dim() const { return q.dim() - 3; }
  /// Heads of q that share one of k and v.
  int64_t group() const {
    if (!has_grouped_heads || k.size(head_dim()) == 0) return 1;
    return q.size(head_dim()) / k.size(head_dim());
  }
  std::array<const Tensor*, 4> tensors() const { return {&q, &k, &v, &mask}; }
};

// ---- arguments

void check_dtypes(const Attention& a) {
  check<SpecMismatch>(
      a.k.scalar_type() == a.q.scalar_type() && a.v.scalar_type() == a.q.scalar_type(), kName,
      "got query, key and value of ", a.q.scalar_type(), ", ", a.k.scalar_type(), " and ",
      a.v.scalar_type(), "; expected one dtype. Convert them.");
  if (!a.mask.defined()) return;
  const auto dtype = a.mask.scalar_type();
  check<SpecMismatch>(dtype == at::kBool || dtype == at::kFloat || dtype == a.q.scalar_type(),
                      kName, "got a mask of ", dtype, " for a query of ", a.q.scalar_type(),
                      "; expected bool, Float or the query's dtype. Convert it.");
}

bool can_expand(c10::IntArrayRef from, c10::IntArrayRef to) {
  if (from.size() > to.size()) return false;
  for (size_t i = 1; i <= from.size(); ++i) {
    if (from[from.size() - i] != 1 && from[from.size() - i] != to[to.size() - i]) return false;
  }
  return true;
}

void check_shapes(const Attention& a) {
  const bool have_rows = a.q.dim() >= 2 && a.k.dim() >= 2 && a.v.dim() >= 2;
  check<SpecMismatch>(have_rows && a.q.size(-1) == a.k.size(-1) && a.k.size(-2) == a.v.size(-2),
                      kName, "got query ", a.q.sizes(), ", key ", a.k.sizes(), " and value ",
                      a.v.sizes(),
                      "; expected (..., L, E), (..., S, E) and (..., S, Ev). Transpose them.");
}

void check_heads(const Attention& a) {
  const bool have_heads = a.q.dim() >= 3 && a.k.dim() == a.q.dim() && a.v.dim() == a.q.dim();
  const int64_t heads = have_heads ? a.q.size(-3) : 0;
  const int64_t shared = have_heads ? a.k.size(-3) : 0;
  const bool divides = shared == 0 ? heads == 0 : heads % shared == 0;
  check<SpecMismatch>(have_heads && divides && a.v.size(-3) == shared, kName,
                      "enable_gqa: got query ", a.q.sizes(), ", key ", a.k.sizes(), " and value ",
                      a.v.sizes(),
                      "; expected as many heads (dim -3) of key and value, a divisor of those of "
                      "the query.");
}

/// Equal batch dims of q, k and v, as a product broadcasts them. Grouped heads stay as they are.
void expand_batches(Attention& a) {
  const size_t kept = a.has_grouped_heads ? 3 : 2;
  const auto batch_of = [&](const Tensor& t) {
    return t.sizes().slice(0, static_cast<size_t>(t.dim()) - kept);
  };
  if (batch_of(a.q) == batch_of(a.k) && batch_of(a.q) == batch_of(a.v)) return;
  const auto batch = at::infer_size(at::infer_size(batch_of(a.q), batch_of(a.k)), batch_of(a.v));
  for (Tensor* t : {&a.q, &a.k, &a.v}) {
    std::vector<int64_t> sizes(batch);
    for (size_t i = kept; i >= 1; --i) sizes.push_back(t->size(-static_cast<int64_t>(i)));
    if (t->sizes() != c10::IntArrayRef(sizes)) *t = t->expand(sizes);
  }
}

void check_mask(const Attention& a, bool is_causal) {
  if (!a.mask.defined()) return;
  check<SpecMismatch>(!is_causal, kName,
                      "got is_causal and a mask; expected one of them. Put both in the mask.");
  Shape scores(a.q.sizes());
  scores.back() = a.k.size(-2);
  check<SpecMismatch>(can_expand(a.mask.sizes(), scores), kName, "got a mask of ", a.mask.sizes(),
                      "; expected one that expands to ", c10::IntArrayRef(scores), ".");
}

std::vector<bool> dims_of_alike_masks(const Attention& a) {
  std::vector<bool> result;
  for (int64_t dim = 0; a.mask.defined() && dim < a.ndim(); ++dim) {
    const int64_t of_mask = dim - (a.ndim() - a.mask.dim());
    result.push_back(of_mask < 0 || (a.mask.size(of_mask) == 1 && a.q.size(dim) != 1));
  }
  return result;
}

// ---- how the tensors must lie along one mesh dim

Layout layout_of(const Tensor& t) { return t.defined() ? Layout(*spec_of(t)) : Layout(); }

/// How q, k, v, the mask and the result lie.
struct Lie {
  Layout q, k, v, mask;
  bool is_ring = false;   ///< queries and keys are cut
  bool is_merge = false;  ///< keys only
};

/// The layout of k and v that goes with one of q along a batch dim; it may be another one along
/// heads, so that no rank's heads of q use others' of k.
Layout with_whole_groups(const Attention& a, Layout q) {
  const int64_t times = a.group();
  const bool fits = std::all_of(q.partition.begin(), q.partition.end(),
                                [&](int64_t heads) { return heads % times == 0; });
  if (times == 1 || q.dim() != a.head_dim() || a.k.size(q.dim()) == 1 || fits) return q;
  const Layout k = layout_of(a.k);
  q.partition = k.is_shard() && k.dim() == q.dim()
                    ? k.partition
                    : even_partition(a.k.size(q.dim()), static_cast<int64_t>(q.partition.size()));
  for (auto& heads : q.partition) heads *= times;
  return q;
}

Layout keys_along(const Attention& a, const Layout& q) {
  Layout k = q;
  if (q.dim() != a.head_dim() || a.group() == 1) return k;
  if (a.k.size(q.dim()) == 1) return {};
  for (auto& heads : k.partition) heads /= a.group();
  return k;
}

/// The mask cut as dim `dim` of q, unless it is alike along it.
Layout mask_along(const Attention& a, const Layout& q) {
  if (!a.mask.defined() || a.mask_is_alike[static_cast<size_t>(q.dim())]) return {};
  return q.moved_to(q.dim() - (a.ndim() - a.mask.dim()));
}

/// Where the result is to be cut: as q is; else along the batch or heads as another one is.
Layout anchor(const Attention& a, int64_t ranks) {
  if (const Layout q = layout_of(a.q); q.is_shard()) {
    if (q.dim() <= a.query_dim()) return q;
    return {Shard(a.query_dim()), even_partition(a.q.size(-2), ranks)};
  }
  for (const Tensor* t : {&a.k, &a.v}) {
    Layout keys = layout_of(*t);
    if (!keys.is_shard() || keys.dim() >= a.key_dim()) continue;
    if (keys.dim() == a.head_dim()) {
      for (auto& heads : keys.partition) heads *= a.group();
    }
    return keys;
  }
  const Layout mask = layout_of(a.mask);
  const int64_t dim = mask.is_shard() ? mask.dim() + a.ndim() - a.mask.dim() : a.ndim();
  const bool is_of_q = dim <= a.query_dim() && a.mask.size(mask.dim()) == a.q.size(dim);
  return is_of_q ? mask.moved_to(dim) : Layout();
}

/// `may_cut_keys`: along no other mesh dim are they cut already.
Lie lie_of(const Attention& a, int64_t ranks, bool may_cut_keys) {
  Lie lie;
  lie.q = anchor(a, ranks);
  if (lie.q.is_shard() && lie.q.dim() < a.query_dim()) {
    lie.q = with_whole_groups(a, lie.q);
    lie.k = lie.v = keys_along(a, lie.q);
    lie.mask = mask_along(a, lie.q);
    return lie;
  }
  if (lie.q.is_shard()) lie.mask = mask_along(a, lie.q);
  const Layout k = layout_of(a.k);
  const Layout v = layout_of(a.v);
  if (!may_cut_keys || !(k.is_shard() || v.is_shard())) return lie;
  if (k.is_shard() && k.dim() == a.key_dim()) {
    lie.k = k;
  } else if (v.is_shard() && v.dim() == a.key_dim()) {
    lie.k = v;
  } else {
    lie.k = Layout(Shard(a.key_dim()), even_partition(a.k.size(-2), ranks));
  }
  lie.v = lie.k;
  (lie.q.is_shard() ? lie.is_ring : lie.is_merge) = true;
  return lie;
}

// ---- down to local tensors and back

Tensor moved(const Tensor& t, const Layout& layout) {
  return redistribute(t, spec_of(t)->with(layout.placement, t.sizes(), layout.partition));
}

/// Local tensors. Plain ones that stay whole where others are cut: their gradients are summed in
/// one message.
Attention local_part(const Attention& a, const Attention& given, const Lie& lie,
                     const DeviceMesh& mesh) {
  const std::array<Layout, 4> layouts{lie.q, lie.k, lie.v, lie.mask};
  const bool is_alike = std::all_of(layouts.begin(), layouts.end(),
                                    [](const Layout& layout) { return layout.is_replicate(); });
  std::vector<Tensor> plain(4);
  for (size_t i = 0; i < 4; ++i) {
    const Tensor& t = *given.tensors()[i];
    if (layouts[i].is_replicate() && t.defined() && !is_shard_tensor(t)) plain[i] = t;
  }
  plain = is_alike ? local_copies(mesh, plain) : local_weights(mesh, plain);
  Attention result = a;
  if (lie.q.is_shard() && lie.q.dim() == a.query_dim() && mesh.size() > 1) {
    result.has_all_queries = false;
  }
  const std::array<Tensor*, 4> results{&result.q, &result.k, &result.v, &result.mask};
  for (size_t i = 0; i < 4; ++i) {
    const Tensor& t = *a.tensors()[i];
    if (plain[i].defined()) {
      *results[i] = plain[i];
    } else if (t.defined()) {
      const bool is_contribution = layouts[i].is_replicate() && !is_alike;
      const Tensor cut = moved(t, layouts[i]);
      *results[i] = is_contribution ? to_local(cut, Partial()) : to_local(cut);
    }
  }
  return result;
}

Attention promoted(const Attention& a, const DeviceMesh& mesh) {
  Attention result = a;
  for (Tensor* t : {&result.q, &result.k, &result.v, &result.mask}) {
    if (!t->defined()) continue;
    *t = promote(*t, mesh);
    *t = redistribute(*t, dual_spec(spec_of(*t)));
  }
  return result;
}

/// As (batch, heads, rows, columns).
Tensor in_four_dims(Tensor t) {
  while (t.dim() < 4) t = t.unsqueeze(0);
  return t.dim() == 4 ? t : t.flatten(0, t.dim() - 4);
}

Tensor on_this_rank(const Attention& a, const AttentionPlan& plan) {
  const bool is_plain_call =
      plan.reach == AttentionPlan::Reach::Own && (!plan.is_causal || a.has_all_queries);
  if (is_plain_call && a.q.numel() > 0 && a.k.numel() > 0) {
    const auto mask = a.mask.defined() ? std::optional<Tensor>(a.mask) : std::nullopt;
    return at::scaled_dot_product_attention(a.q, a.k, a.v, mask, a.dropout, plan.is_causal, a.scale,
                                            a.has_grouped_heads)
        .contiguous();
  }
  Tensor mask = a.mask;
  if (mask.defined() && a.ndim() > 4) {
    Shape scores(a.q.sizes());
    scores.back() = mask.size(-1);
    scores[scores.size() - 2] = mask.dim() > 1 ? mask.size(-2) : 1;
    mask = mask.expand(scores);
  }
  const Tensor y = ring_attention(in_four_dims(a.q), in_four_dims(a.k), in_four_dims(a.v),
                                  mask.defined() ? in_four_dims(mask) : mask, plan);
  Shape shape(a.q.sizes());
  shape.back() = a.v.size(-1);
  return y.view(shape);
}

/// Goes down the levels of a mesh of several dims; `plan` tells what those above have cut.
Tensor attend(const Attention& given, AttentionPlan plan) {
  const Tensor* sharded = nullptr;
  for (const Tensor* t : given.tensors()) {
    if (!sharded && t->defined() && is_shard_tensor(*t)) sharded = t;
  }
  if (!sharded) return on_this_rank(given, plan);
  const DeviceMesh mesh = mesh_of(*sharded);
  if (given.dropout > 0 && mesh.size() > 1) {
    refuse_op(c10::str("aten::", kName), c10::str("dropout_p = ", given.dropout),
              "dropout_p = 0: every rank would drop other weights than one device");
  }
  const Attention a = promoted(given, mesh);
  const Lie lie = lie_of(a, mesh.size(), plan.reach == AttentionPlan::Reach::Own);
  const int64_t rank = mesh.rank();
  if (lie.q.is_shard() && lie.q.dim() == a.query_dim()) {
    const int64_t begin = plan.queries.begin + offset_of(lie.q.partition, rank);
    plan.queries = {begin, begin + lie.q.partition[static_cast<size_t>(rank)]};
  }
  if ((lie.is_ring || lie.is_merge) && mesh.size() > 1) {
    plan.reach = lie.is_ring ? AttentionPlan::Reach::Ring : AttentionPlan::Reach::Merge;
    plan.mesh = mesh;
    plan.keys = lie.k.partition;
  }
  Shape shape(a.q.sizes());
  shape.back() = a.v.size(-1);
  const auto spec =
      ShardTensorSpec::make(mesh.layout_ref(), lie.q.placement, shape, lie.q.partition);
  return from_local(attend(local_part(a, given, lie, mesh), plan), mesh, spec);
}

Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const std::optional<Tensor>& mask, double dropout,
                                    bool is_causal, std::optional<double> scale, bool enable_gqa) {
  Attention a{query, key, value, mask.value_or(Tensor()), dropout, scale, enable_gqa};
  check_dtypes(a);
  check_shapes(a);
  if (enable_gqa) check_heads(a);
  expand_batches(a);
  check_mask(a, is_causal);
  a.mask_is_alike = dims_of_alike_masks(a);
  AttentionPlan plan;
  plan.queries = {0, a.q.size(-2)};
  plan.keys = {a.k.size(-2)};
  plan.is_causal = is_causal;
  plan.scale = scale.value_or(1 / std::sqrt(static_cast<double>(a.q.size(-1))));
  return attend(a, plan);
}

}  // namespace

SHARD_PATCH(attention) {
  patch.function<at::_ops::scaled_dot_product_attention>(scaled_dot_product_attention)
      .shards("batch", "heads", "sequence", "features (moved to the sequence)")
      .notes("a cut sequence of keys travels around the ranks; dropout: refused");
}

}  // namespace shard
