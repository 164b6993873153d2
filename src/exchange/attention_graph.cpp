// SPDX-License-Identifier: Apache-2.0
#include "exchange/attention_graph.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <shard/primitives.h>

#include <limits>

#include "exchange/key_blocks.h"

namespace shard {
namespace {

using at::Tensor;

/// Keys or values of all ranks, for use by other queries on every rank.
Tensor gathered(const Tensor& own, const AttentionPlan& plan) {
  if (plan.reach != AttentionPlan::Reach::Ring) return own;
  Shape shape(own.sizes());
  shape[2] = plan.all_keys();
  const auto spec =
      ShardTensorSpec::make(plan.mesh.layout_ref(), Shard(2), shape, plan.key_sizes());
  return to_local(redistribute(from_local(own, plan.mesh, spec), spec->replicated()), Partial());
}

/// Its adjoint: contributions to the rows of all ranks, summed where they belong.
Tensor scattered(const Tensor& all, const AttentionPlan& plan) {
  if (plan.reach != AttentionPlan::Reach::Ring) return all;
  const auto spec = ShardTensorSpec::make(plan.mesh.layout_ref(), Partial(), all.sizes());
  return to_local(redistribute(from_local(all, plan.mesh, spec),
                               spec->with(Shard(2), all.sizes(), plan.key_sizes())));
}

/// A gradient that is the same on every rank, for use by other keys on every rank.
Tensor common(const Tensor& gradient, const AttentionPlan& plan) {
  if (plan.reach != AttentionPlan::Reach::Merge) return gradient;
  const auto spec = ShardTensorSpec::make(plan.mesh.layout_ref(), Replicate(), gradient.sizes());
  return to_local(from_local(gradient, plan.mesh, spec), Partial());
}

/// As a column.
Tensor positions(const std::vector<Rows>& rows, const at::TensorOptions& options) {
  std::vector<Tensor> pieces{at::zeros({0}, options)};
  for (const Rows& piece : rows) pieces.push_back(at::arange(piece.begin, piece.end, options));
  return at::cat(pieces).unsqueeze(1);
}

/// The keys that are here, and their columns of the mask.
struct Keys {
  std::vector<Rows> positions;
  Rows columns;
};
Keys keys_here(const AttentionPlan& plan, const Inputs& in) {
  if (plan.reach == AttentionPlan::Reach::Merge) {
    const KeyBlocks blocks(plan, in.k, in.v);
    return {blocks.positions(0), blocks.rows(0)};
  }
  Keys all{{}, {0, plan.all_keys()}};
  for (const auto& of_rank : plan.keys) {
    all.positions.insert(all.positions.end(), of_rank.begin(), of_rank.end());
  }
  return all;
}

/// What local queries add to scores of the keys that are here: mask and -inf where nothing is seen.
Tensor added_to_scores(const Tensor& mask, const AttentionPlan& plan, const Keys& keys,
                       const at::TensorOptions& options) {
  Tensor added = at::zeros({plan.own_queries(), keys.columns.size()}, options);
  if (plan.is_causal) {
    const auto integers = options.dtype(at::kLong);
    const Tensor i = positions(plan.queries, integers);
    const Tensor j = positions(keys.positions, integers).t();
    added.masked_fill_(j > i, -std::numeric_limits<double>::infinity());
  }
  if (!mask.defined()) return added;
  return added + additive_mask(mask_rows(mask, -1, keys.columns),
                               c10::typeMetaToScalarType(options.dtype()));
}

/// Factors of the weights of all local queries and the keys that are here; undefined: ones.
Tensor kept_here(const AttentionPlan& plan, const Keys& keys) {
  if (!plan.dropout) return {};
  std::vector<Tensor> rows;
  for (const Rows& queries : plan.queries) {
    std::vector<Tensor> blocks;
    for (const Rows& columns : keys.positions) {
      blocks.push_back(kept_weights(plan, queries, columns));
    }
    rows.push_back(at::cat(blocks, -1));
  }
  return at::cat(rows, -2);
}

/// The gradient of a mask from that of the scores: other columns are zero.
Tensor of_mask(const Tensor& of_scores, const Tensor& mask, const Rows& columns) {
  if (mask.size(-1) == 1) return of_scores.sum_to_size(mask.sizes());
  Shape shape(mask.sizes());
  shape.back() = columns.size();
  const int64_t after = mask.size(-1) - columns.end;
  return at::constant_pad_nd(of_scores.sum_to_size(shape), {columns.begin, after});
}

}  // namespace

BlockGradients differentiable_gradients(const Tensor& gradient, const Inputs& in, const Tensor& lse,
                                        const AttentionPlan& plan, bool wants_mask) {
  const auto dtype = accumulating_dtype(in.q.scalar_type());
  const bool is_merge = plan.reach == AttentionPlan::Reach::Merge;
  const auto over_ranks = [&](const Tensor& t) { return is_merge ? all_reduce(t, plan.mesh) : t; };
  const Tensor k = gathered(in.k, plan);
  const Tensor v = gathered(in.v, plan);
  const Keys keys = keys_here(plan, in);
  // Queries that share key heads become one more dim: (batch, key heads, times, rows, e).
  const auto grouped = [&](const Tensor& t) {
    const int64_t heads = k.size(1);
    const int64_t times = heads == 0 ? 1 : t.size(1) / heads;
    return t.to(dtype).reshape({t.size(0), heads, times, t.size(2), t.size(3)});
  };
  const auto shared = [&](const Tensor& t) { return t.to(dtype).unsqueeze(2); };
  const auto of_shared = [&](const Tensor& t) { return scattered(t.sum(2), plan); };

  const Tensor q = grouped(in.q);
  const Tensor g = grouped(common(gradient, plan));
  const Tensor added = added_to_scores(in.mask, plan, keys, q.options());
  const Tensor all_heads =
      added.expand({in.q.size(0), in.q.size(1), q.size(3), keys.columns.size()});
  const Tensor scores =
      at::matmul(q, shared(k).transpose(-2, -1)) * plan.scale + grouped(all_heads);
  const Tensor unscaled = (scores - grouped(lse.unsqueeze(-1))).exp();
  const Tensor total = over_ranks(unscaled.sum(-1, true));
  const Tensor weights = unscaled / (total + (total == 0));
  const Tensor kept = kept_here(plan, keys);
  const auto dropped = [&](const Tensor& t) { return kept.defined() ? t * grouped(kept) : t; };
  const Tensor of_weights = dropped(at::matmul(g, shared(v).transpose(-2, -1)));
  const Tensor mean = over_ranks((weights * of_weights).sum(-1, true));
  const Tensor of_scores = weights * (of_weights - mean);
  BlockGradients result;
  result.q = (at::matmul(of_scores, shared(k)) * plan.scale).reshape(in.q.sizes());
  result.k = of_shared(at::matmul(of_scores.transpose(-2, -1), q) * plan.scale);
  result.v = of_shared(at::matmul(dropped(weights).transpose(-2, -1), g));
  if (wants_mask) {
    result.mask = of_mask(of_scores.reshape(all_heads.sizes()), in.mask, keys.columns);
  }
  return result;
}

}  // namespace shard
