// SPDX-License-Identifier: Apache-2.0
// scaled_dot_product_attention. Cut along the batch or the heads every rank runs LibTorch's op. A
// cut sequence of queries next to whole keys too; next to cut keys, keys and values travel around
// the ranks (<shard/ring_attention.h>); whole queries find in every rank's keys a part of the
// result.
#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/strides.h>
#include <shard/attention.h>
#include <shard/attention_patch.h>
#include <shard/exchange.h>
#include <shard/patch.h>
#include <shard/redistribute_together.h>
#include <shard/ring_attention.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

namespace shard {
namespace {

using at::Tensor;

constexpr const char* kName = kAttention;

// ---- down to local tensors and back

SpecRef target_of(const Tensor& t, const Layout& layout) {
  return spec_of(t)->with(layout.placement, t.sizes(), layout.partition);
}
Tensor moved(const Tensor& t, const Layout& layout) {
  return redistribute(t, target_of(t, layout));
}

bool cuts_queries(const AttentionCall& a, const AttentionLie& lie) {
  return lie.q.is_shard() && lie.q.dim() == a.query_dim();
}

/// Local tensors. Plain ones that stay whole where others are cut: their gradients are summed in
/// one message.
AttentionCall local_part(const AttentionCall& a, const AttentionCall& given,
                         const AttentionLie& lie, const DeviceMesh& mesh) {
  const std::array<Layout, 4> layouts{lie.q, lie.k, lie.v, lie.mask};
  const bool is_alike = std::all_of(layouts.begin(), layouts.end(),
                                    [](const Layout& layout) { return layout.is_replicate(); });
  std::vector<Tensor> plain(4);
  for (size_t i = 0; i < 4; ++i) {
    const Tensor& t = *given.tensors()[i];
    if (layouts[i].is_replicate() && t.defined() && !is_shard_tensor(t)) plain[i] = t;
  }
  plain = is_alike ? local_copies(mesh, plain) : local_weights(mesh, plain);
  AttentionCall result = a;
  if (cuts_queries(a, lie) && mesh.size() > 1) result.has_all_queries = false;
  const auto cuts_heads = [&](const Layout& layout) {
    return layout.is_shard() && layout.dim() == a.head_dim();
  };
  if (cuts_heads(lie.q)) result.heads_of_q = lie.q.partition;
  if (cuts_heads(lie.k)) result.heads_of_k = lie.k.partition;
  const std::array<Tensor*, 4> results{&result.q, &result.k, &result.v, &result.mask};
  std::vector<Tensor> moving;
  std::vector<SpecRef> targets;
  std::vector<size_t> places;
  for (size_t i = 0; i < 4; ++i) {
    const Tensor& t = *a.tensors()[i];
    if (plain[i].defined()) {
      *results[i] = plain[i];
    } else if (t.defined()) {
      moving.push_back(t);
      targets.push_back(target_of(t, layouts[i]));
      places.push_back(i);
    }
  }
  const auto cut = redistribute_together(moving, targets);
  for (size_t i = 0; i < cut.size(); ++i) {
    const bool is_contribution = layouts[places[i]].is_replicate() && !is_alike;
    *results[places[i]] = is_contribution ? to_local(cut[i], Partial()) : to_local(cut[i]);
  }
  return result;
}

AttentionCall promoted(const AttentionCall& a, const DeviceMesh& mesh) {
  AttentionCall result = a;
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

/// Whether LibTorch would choose its flash kernel, which has no second derivative, for a plain
/// call.
bool is_for_flash(const AttentionCall& a) {
  const auto has_dense_rows = [](const Tensor& t) { return t.stride(-1) == 1; };
  const auto dtype = a.q.scalar_type();
  const bool has_fitting_mask =
      !a.mask.defined() || (!a.mask.requires_grad() && (a.mask.dim() == 2 || a.mask.dim() == 4));
  return a.ndim() == 4 && a.dropout == 0 && a.q.size(-1) == a.v.size(-1) && has_fitting_mask &&
         a.q.numel() > 0 && a.k.numel() > 0 && has_dense_rows(a.q) && has_dense_rows(a.k) &&
         has_dense_rows(a.v) && (at::isReducedFloatingType(dtype) || isFloatingType(dtype)) &&
         at::globalContext().userEnabledFlashSDP();
}

/// Dims of the result as LibTorch's kernel lays them out, so that views of it work as they do
/// there: the flash kernel's result lies like the query. From metadata that all ranks have.
std::vector<int64_t> order_of_result(const AttentionCall& a) {
  std::vector<int64_t> order(static_cast<size_t>(a.ndim()));
  std::iota(order.begin(), order.end(), 0);
  if (!a.is_for_flash) return order;
  const auto strides = at::infer_dense_strides(a.q.sizes(), a.q.strides());
  std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
    return strides[static_cast<size_t>(i)] > strides[static_cast<size_t>(j)];
  });
  return order;
}

/// Applies `f(t, where)` to `t` with its dims in `order`, where `where` is the place of `dim`.
template <class F>
Tensor in_order(const Tensor& t, const std::vector<int64_t>& order, int64_t dim, const F& f) {
  if (std::is_sorted(order.begin(), order.end())) return f(t, dim);
  std::vector<int64_t> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    inverse[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return f(t.permute(order), inverse[static_cast<size_t>(dim)]).permute(inverse);
}

/// Strides are compared, since is_contiguous() ignores dims of size one, whose strides the spec
/// takes over.
Tensor laid_out(const Tensor& y, const std::vector<int64_t>& order) {
  return in_order(y, order, 0, [](const Tensor& t, int64_t) {
    const bool is_so = t.strides() == c10::IntArrayRef(c10::contiguous_strides(t.sizes()));
    return is_so ? t : t.clone(at::MemoryFormat::Contiguous);
  });
}

Tensor on_this_rank(const AttentionCall& a, const AttentionPlan& plan) {
  // Parts may lie otherwise than the whole: what can be differentiated twice stays so.
  const bool is_plain_call = plan.reach == AttentionPlan::Reach::Own && !plan.dropout &&
                             (!plan.is_causal || a.has_all_queries) &&
                             (a.is_for_flash || !is_for_flash(a));
  if (is_plain_call && a.q.numel() > 0 && a.k.numel() > 0) {
    const auto mask = a.mask.defined() ? std::optional<Tensor>(a.mask) : std::nullopt;
    return laid_out(at::scaled_dot_product_attention(a.q, a.k, a.v, mask, a.dropout, plan.is_causal,
                                                     a.scale, a.has_grouped_heads),
                    a.order);
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
  return laid_out(a.ndim() == 4 ? y : y.contiguous().view(shape), a.order);
}

// ---- one mesh dim after the other

std::vector<std::vector<Rows>> one_range_each(const Partition& partition) {
  std::vector<std::vector<Rows>> rows;
  int64_t begin = 0;
  for (const int64_t size : partition) {
    rows.push_back({{begin, begin + size}});
    begin += size;
  }
  return rows;
}

/// Where the queries of a level are computed, and the way there and back.
struct Balance {
  std::vector<std::vector<Rows>> rows;  ///< by rank
  DeviceMesh mesh;
  Partition partition;  ///< of the queries where they lie

  Tensor there(const Tensor& t, int64_t dim) const { return moved(t, dim, partition, rows); }
  Tensor back(const Tensor& t, int64_t dim) const {
    Partition sizes;
    for (const auto& pieces : rows) sizes.push_back(pieces[0].size() + pieces[1].size());
    return moved(t, dim, sizes, rows_of_pieces());
  }

 private:
  Tensor moved(const Tensor& t, int64_t dim, const Partition& owned,
               const std::vector<std::vector<Rows>>& wanted) const {
    const HaloPlan plan = make_halo_plan(dim, owned, wanted);
    return assemble(exchange_halo(t, plan, mesh), plan, mesh.rank());
  }
  /// What every rank's piece of the result consists of: rows counted through `rows`.
  std::vector<std::vector<Rows>> rows_of_pieces() const {
    std::vector<std::vector<Rows>> wanted(partition.size());
    for (size_t r = 0; r < partition.size(); ++r) {
      const int64_t begin = offset_of(partition, static_cast<int64_t>(r));
      wanted[r] = found_in_rows({begin, begin + partition[r]});
    }
    return wanted;
  }
  /// In the order of the sequence.
  std::vector<Rows> found_in_rows(const Rows& piece) const {
    std::map<int64_t, Rows> found;
    int64_t count = 0;
    for (const auto& of_rank : rows) {
      for (const Rows& there : of_rank) {
        const Rows both{std::max(there.begin, piece.begin), std::min(there.end, piece.end)};
        if (both.size() > 0) {
          const int64_t begin = count + both.begin - there.begin;
          found[both.begin] = {begin, begin + both.size()};
        }
        count += there.size();
      }
    }
    std::vector<Rows> result;
    for (const auto& [position, there] : found) result.push_back(there);
    return result;
  }
};

Tensor attend(const AttentionCall& given, AttentionPlan plan);

/// Attends with q, k, v and the mask as `lie` says.
Tensor attend_as(const AttentionCall& given, const AttentionCall& a, const AttentionLie& lie,
                 const DeviceMesh& mesh, AttentionPlan plan, AttentionForm form) {
  const auto rank = static_cast<size_t>(mesh.rank());
  const int64_t first = plan.queries[0].begin;  // other mesh dims may cut the queries as well
  if (cuts_queries(a, lie)) {
    const int64_t begin = first + offset_of(lie.q.partition, mesh.rank());
    plan.queries = {{begin, begin + lie.q.partition[rank]}};
  }
  if (plan.dropout && lie.q.is_shard() && lie.q.dim() < a.query_dim()) {
    Rows& rows = plan.leading[static_cast<size_t>(lie.q.dim())];
    rows.begin += offset_of(lie.q.partition, mesh.rank());
    rows.end = rows.begin + lie.q.partition[rank];
  }
  if ((lie.is_ring || lie.is_merge) && mesh.size() > 1) {
    plan.reach = lie.is_ring ? AttentionPlan::Reach::Ring : AttentionPlan::Reach::Merge;
    plan.mesh = mesh;
    plan.keys = one_range_each(lie.k.partition);
  }
  if (are_sequences_zigzag() && plan.is_causal && lie.is_ring) {
    plan.queries = zigzag_rows(a.q.size(-2), mesh.size())[rank];
    plan.keys = zigzag_rows(a.k.size(-2), mesh.size());
  }
  Shape shape(a.q.sizes());
  shape.back() = a.v.size(-1);
  const auto spec =
      ShardTensorSpec::make(mesh.layout_ref(), lie.q.placement, shape, lie.q.partition);
  AttentionCall local = local_part(a, given, lie, mesh);
  if (form != AttentionForm::Balanced) return from_local(attend(local, plan), mesh, spec);

  const Balance balance{zigzag_rows(a.q.size(-2), mesh.size()), mesh, lie.q.partition};
  local.q = balance.there(local.q, a.query_dim());
  if (lie.mask.is_shard()) local.mask = balance.there(local.mask, local.mask.dim() - 2);
  plan.queries = balance.rows[rank];
  for (Rows& rows : plan.queries) rows = {first + rows.begin, first + rows.end};
  const Tensor y = in_order(on_this_rank(local, plan), a.order, a.query_dim(),
                            [&](const Tensor& t, int64_t dim) { return balance.back(t, dim); });
  return from_local(laid_out(y, a.order), mesh, spec);
}

/// Under a causal mask the last rank of P has (P - 1) / 2 blocks of scores more to compute than the
/// mean; what has to be moved for it pays from so many queries a rank on.
constexpr int64_t kQueriesWorthBalancing = 128;

bool has_plain_locals(const AttentionCall& a) {
  const auto tensors = a.tensors();
  return std::none_of(tensors.begin(), tensors.end(), [](const Tensor* t) {
    return t->defined() && is_shard_tensor(raw_local(*t));
  });
}

/// All but a rank's own part of q, k, v and the result moves once; or k and v past all ranks. Where
/// that is equal, heads need fewer kernels and messages, a ring hides those that are large.
bool moves_less_by_heads(const AttentionCall& a, int64_t ranks) {
  const int64_t keys = a.k.numel() + a.v.numel();
  const int64_t all =
      keys + a.q.numel() + a.q.numel() / std::max<int64_t>(a.q.size(-1), 1) * a.v.size(-1);
  const int64_t block = keys / ranks * static_cast<int64_t>(a.k.element_size());
  return all < ranks * keys || (all == ranks * keys && block < kBytesWorthOverlapping);
}

/// The form in which a ring is computed.
AttentionForm form_of(const AttentionCall& a, const AttentionLie& lie, const AttentionPlan& plan,
                      int64_t ranks) {
  const bool can_be_another =
      lie.is_ring && ranks > 1 && has_plain_locals(a) && !are_sequences_zigzag();
  const AttentionForm form = attention_form();
  if (!can_be_another || form == AttentionForm::Ring) return AttentionForm::Ring;
  const auto divide = [&](const Partition& heads) {
    return !heads.empty() && std::all_of(heads.begin(), heads.end(), [&](int64_t of_place) {
      return of_place > 0 && of_place % ranks == 0;
    });
  };
  const bool can_be_heads = divide(a.heads_of_q) && divide(a.heads_of_k);
  if (form == AttentionForm::Heads) {
    check<SpecMismatch>(can_be_heads, kName, "attention by heads: got ", a.heads_of_q,
                        " heads of the query and ", a.heads_of_k, " of the key (dim -3) over ",
                        ranks,
                        " ranks; expected multiples of the number of ranks wherever another mesh "
                        "dim cuts them. Use SHARD_ATTENTION=ring.");
    return form;
  }
  if (form == AttentionForm::Balanced) return form;
  if (can_be_heads && !lie.mask.is_shard() && moves_less_by_heads(a, ranks)) {
    return AttentionForm::Heads;
  }
  const bool pays = plan.is_causal && a.q.size(-2) >= kQueriesWorthBalancing * ranks;
  return pays ? AttentionForm::Balanced : AttentionForm::Ring;
}

void check_zigzag(const AttentionCall& a, const AttentionLie& lie, int64_t ranks) {
  const auto fits = [&](const Layout& layout, const Tensor& t) {
    return layout.partition == zigzag_partition(t.size(-2), ranks);
  };
  check<SpecMismatch>(lie.is_ring && has_plain_locals(a) && fits(lie.q, a.q) && fits(lie.k, a.k),
                      kName, "causal attention of zig-zag sequences: got query ", a.q.sizes(),
                      " cut by ", lie.q.partition, " and key ", a.k.sizes(), " by ",
                      lie.k.partition,
                      "; expected both cut by zigzag_partition along one mesh dim. Scatter "
                      "them so, or leave the ZigzagSequences scope.");
}

/// Once, on the whole of the scores.
void begin_dropout(const AttentionCall& a, AttentionPlan& plan) {
  Shape scores(a.q.sizes());
  scores.back() = a.k.size(-2);
  if (std::find(scores.begin(), scores.end(), 0) != scores.end()) return;
  if (!innermost(a.q).is_cpu()) {
    refuse_op(c10::str("aten::", kName), c10::str("dropout_p = ", a.dropout, " on a GPU"),
              "dropout_p = 0: which weights one GPU drops depends on the whole launch");
  }
  plan.dropout = draw_attention_dropout(a.dropout, scores, a.q.scalar_type());
  for (int64_t dim = 0; dim < a.query_dim(); ++dim) plan.leading.push_back({0, a.q.size(dim)});
}

/// Goes down the levels of a mesh of several dims; `plan` tells what those above have cut.
Tensor attend(const AttentionCall& given, AttentionPlan plan) {
  const Tensor* sharded = nullptr;
  for (const Tensor* t : given.tensors()) {
    if (!sharded && t->defined() && is_shard_tensor(*t)) sharded = t;
  }
  if (!sharded) return on_this_rank(given, plan);
  const DeviceMesh mesh = mesh_of(*sharded);
  const AttentionCall a = promoted(given, mesh);
  if (given.dropout > 0 && mesh.size() > 1 && !plan.dropout) begin_dropout(a, plan);
  const AttentionLie lie = lie_of(a, mesh.size(), plan.reach == AttentionPlan::Reach::Own);
  const bool cuts_sequences = lie.is_ring || lie.is_merge || cuts_queries(a, lie);
  if (are_sequences_zigzag() && plan.is_causal && cuts_sequences) {
    check_zigzag(a, lie, mesh.size());
  }
  const AttentionForm form = form_of(a, lie, plan, mesh.size());
  if (form != AttentionForm::Heads) return attend_as(given, a, lie, mesh, plan, form);
  const Tensor y = attend_as(given, a, lie_by_heads(a, mesh.size()), mesh, plan, form);
  return in_order(y, a.order, a.query_dim(),
                  [&](const Tensor& t, int64_t dim) { return moved(t, lie.q.moved_to(dim)); });
}

Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const std::optional<Tensor>& mask, double dropout,
                                    bool is_causal, std::optional<double> scale, bool enable_gqa) {
  AttentionCall a{query, key, value, mask.value_or(Tensor()), dropout, scale, enable_gqa};
  check_and_expand(a, is_causal);
  a.is_for_flash = is_for_flash(a);
  a.order = order_of_result(a);
  AttentionPlan plan;
  plan.queries = {{0, a.q.size(-2)}};
  plan.keys = {{{0, a.k.size(-2)}}};
  plan.is_causal = is_causal;
  plan.scale = scale.value_or(1 / std::sqrt(static_cast<double>(a.q.size(-1))));
  return attend(a, plan);
}

}  // namespace

SHARD_PATCH(attention) {
  patch.function<at::_ops::scaled_dot_product_attention>(scaled_dot_product_attention)
      .shards("batch", "heads", "sequence", "features (moved to the sequence)")
      .notes("a cut sequence of keys travels around the ranks, or heads do: SHARD_ATTENTION");
}

}  // namespace shard
