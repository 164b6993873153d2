// SPDX-License-Identifier: Apache-2.0
#include <ATen/ExpandUtils.h>
#include <shard/attention_patch.h>
#include <shard/primitives.h>

#include <algorithm>

namespace shard {
namespace {

using at::Tensor;

constexpr const char* kName = kAttention;

void check_dtypes(const AttentionCall& a) {
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

void check_shapes(const AttentionCall& a) {
  const bool have_rows = a.q.dim() >= 2 && a.k.dim() >= 2 && a.v.dim() >= 2;
  check<SpecMismatch>(have_rows && a.q.size(-1) == a.k.size(-1) && a.k.size(-2) == a.v.size(-2),
                      kName, "got query ", a.q.sizes(), ", key ", a.k.sizes(), " and value ",
                      a.v.sizes(),
                      "; expected (..., L, E), (..., S, E) and (..., S, Ev). Transpose them.");
}

void check_heads(const AttentionCall& a) {
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
void expand_batches(AttentionCall& a) {
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

void check_mask(const AttentionCall& a, bool is_causal) {
  if (!a.mask.defined()) return;
  check<SpecMismatch>(!is_causal, kName,
                      "got is_causal and a mask; expected one of them. Put both in the mask.");
  Shape scores(a.q.sizes());
  scores.back() = a.k.size(-2);
  check<SpecMismatch>(can_expand(a.mask.sizes(), scores), kName, "got a mask of ", a.mask.sizes(),
                      "; expected one that expands to ", c10::IntArrayRef(scores), ".");
}

std::vector<bool> dims_of_alike_masks(const AttentionCall& a) {
  std::vector<bool> result;
  for (int64_t dim = 0; a.mask.defined() && dim < a.ndim(); ++dim) {
    const int64_t of_mask = dim - (a.ndim() - a.mask.dim());
    result.push_back(of_mask < 0 || (a.mask.size(of_mask) == 1 && a.q.size(dim) != 1));
  }
  return result;
}

// ---- how the tensors must lie

Layout layout_of(const Tensor& t) { return t.defined() ? Layout(*spec_of(t)) : Layout(); }

/// The layout of k and v that goes with one of q along a batch dim; it may be another one along
/// heads, so that no rank's heads of q use others' of k.
Layout with_whole_groups(const AttentionCall& a, Layout q) {
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

Layout keys_along(const AttentionCall& a, const Layout& q) {
  Layout k = q;
  if (q.dim() != a.head_dim()) return k;
  if (a.k.size(q.dim()) == 1 && a.q.size(q.dim()) != 1) return {};
  for (auto& heads : k.partition) heads /= a.group();
  return k;
}

/// The mask cut as dim `dim` of q, unless it is alike along it.
Layout mask_along(const AttentionCall& a, const Layout& q) {
  if (!a.mask.defined() || a.mask_is_alike[static_cast<size_t>(q.dim())]) return {};
  return q.moved_to(q.dim() - (a.ndim() - a.mask.dim()));
}

/// Where the result is to be cut: as q is; else along the batch or heads as another one is.
Layout anchor(const AttentionCall& a, int64_t ranks) {
  if (const Layout q = layout_of(a.q); q.is_shard()) {
    if (q.dim() <= a.query_dim()) return q;
    return {Shard(a.query_dim()), even_partition(a.q.size(-2), ranks)};
  }
  for (const Tensor* t : {&a.k, &a.v}) {
    Layout keys = layout_of(*t);
    if (!keys.is_shard() || keys.dim() >= a.key_dim()) continue;
    if (keys.dim() == a.head_dim()) {  // along another mesh dim a rank may have no heads of q
      const int64_t heads_of_q = a.q.size(keys.dim());
      const int64_t heads_of_k = std::max<int64_t>(a.k.size(keys.dim()), 1);
      for (auto& heads : keys.partition) heads = heads * heads_of_q / heads_of_k;
    }
    return keys;
  }
  const Layout mask = layout_of(a.mask);
  const int64_t dim = mask.is_shard() ? mask.dim() + a.ndim() - a.mask.dim() : a.ndim();
  const bool is_of_q = dim <= a.query_dim() && a.mask.size(mask.dim()) == a.q.size(dim);
  return is_of_q ? mask.moved_to(dim) : Layout();
}

}  // namespace

void check_and_expand(AttentionCall& a, bool is_causal) {
  check_dtypes(a);
  check_shapes(a);
  if (a.has_grouped_heads) check_heads(a);
  expand_batches(a);
  check_mask(a, is_causal);
  a.mask_is_alike = dims_of_alike_masks(a);
  if (a.ndim() < 3) return;
  a.heads_of_q = {a.q.size(a.head_dim())};
  a.heads_of_k = {a.k.size(a.head_dim())};
}

AttentionLie lie_of(const AttentionCall& a, int64_t ranks, bool may_cut_keys) {
  AttentionLie lie;
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

AttentionLie lie_by_heads(const AttentionCall& a, int64_t ranks) {
  AttentionLie lie;
  lie.q = Layout(Shard(a.head_dim()), even_partition(a.q.size(-3), ranks));
  lie.k = lie.v = Layout(Shard(a.head_dim()), even_partition(a.k.size(-3), ranks));
  lie.mask = mask_along(a, lie.q);
  return lie;
}

}  // namespace shard
