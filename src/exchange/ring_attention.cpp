// SPDX-License-Identifier: Apache-2.0
// NOTE [Ring attention]
// Forward: every rank attends to its own block of keys, passes the block on, attends to the one
// that it got, and so on; results are merged by the logarithms of their sums of weights (Liu,
// Zaharia, Abbeel: Ring Attention with Blockwise Transformers). Saved: inputs, output and one
// number a query. Backward: with the merged output and logarithm each block's gradients are those
// of the whole; the blocks travel again, together with the sums of their gradients, which the last
// step brings home. Which blocks are skipped under a causal mask follows from the plan; the
// exchanges are the same.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <shard/primitives.h>
#include <shard/ring_attention.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <limits>
#include <numeric>

#include "exchange/attention_block.h"
#include "exchange/ring.h"

namespace shard {
namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// Rows of two tensors in one contiguous buffer, so that they travel as one message.
struct Pair {
  Tensor buffer, k, v;
};

Shape with_rows(const Tensor& like, int64_t rows) {
  Shape shape(like.sizes());
  shape[2] = rows;
  return shape;
}

Pair pair_in(const Tensor& buffer, const Tensor& k, const Tensor& v, int64_t rows) {
  const auto k_shape = with_rows(k, rows);
  const auto v_shape = with_rows(v, rows);
  const int64_t of_k = c10::multiply_integers(k_shape);
  const int64_t of_v = c10::multiply_integers(v_shape);
  return {buffer.narrow(0, 0, of_k + of_v), buffer.narrow(0, 0, of_k).view(k_shape),
          buffer.narrow(0, of_k, of_v).view(v_shape)};
}

/// The blocks of keys that a rank sees one after the other: its own first.
class Blocks {
 public:
  Blocks(const AttentionPlan& plan, const Tensor& k, const Tensor& v) : plan_(plan), k_(k), v_(v) {}

  bool travel() const { return plan_.reach == AttentionPlan::Reach::Ring; }
  int64_t count() const { return travel() ? Ring(plan_.mesh).size() : 1; }
  int64_t owner(int64_t step) const {
    if (travel()) return Ring(plan_.mesh).owner(step);
    return plan_.reach == AttentionPlan::Reach::Merge ? plan_.mesh.rank() : 0;
  }
  /// Global rows of the block of a step.
  Rows rows(int64_t step) const {
    const int64_t begin = offset_of(plan_.keys, owner(step));
    return {begin, begin + size(step)};
  }
  int64_t size(int64_t step) const { return plan_.keys[static_cast<size_t>(owner(step))]; }

  /// This rank's own keys and values, packed if they are to travel.
  Pair own() const {
    if (!travel()) return {Tensor(), k_, v_};
    Pair pair = empty(0, k_.scalar_type());
    pair.k.copy_(k_);
    pair.v.copy_(v_);
    return pair;
  }
  Pair empty(int64_t step, at::ScalarType dtype) const {
    const int64_t elements = (k_.size(3) + v_.size(3)) * k_.size(0) * k_.size(1);
    const Tensor buffer = at::empty({elements * size(step)}, k_.options().dtype(dtype));
    return pair_in(buffer, k_, v_, size(step));
  }
  Pair zeros(int64_t step, at::ScalarType dtype) const {
    Pair pair = empty(step, dtype);
    pair.buffer.zero_();
    return pair;
  }

 private:
  const AttentionPlan& plan_;
  const Tensor& k_;
  const Tensor& v_;
};

Tensor mask_rows(const Tensor& mask, int64_t dim, const Rows& rows) {
  return mask.size(dim) == 1 ? mask : mask.narrow(dim, rows.begin, rows.size());
}

/// A part of a block with what lies beside it: rows of queries and the mask of these columns.
struct View {
  Rows queries;
  Rows columns;
  Block block;
};

/// `use` is called for every part of the block that some query sees.
template <class Use>
void each_part(const AttentionPlan& plan, const Tensor& q, const Pair& keys, const Rows& rows,
               const Tensor& mask, const Use& use) {
  if (q.size(0) == 0 || q.size(1) == 0) return;
  for (const auto& part : visible_parts(plan.queries, rows, plan.is_causal)) {
    const Rows columns{rows.begin + part.keys.begin, rows.begin + part.keys.end};
    const auto narrowed = [](const Tensor& t, const Rows& r) {
      return t.narrow(2, r.begin, r.size());
    };
    Block block{narrowed(q, part.queries),
                narrowed(keys.k, part.keys),
                narrowed(keys.v, part.keys),
                Tensor(),
                part.is_causal,
                plan.scale};
    if (mask.defined()) block.mask = mask_rows(mask_rows(mask, -1, columns), -2, part.queries);
    use(View{part.queries, columns, std::move(block)});
  }
}

BlockResult rows_of(const BlockResult& result, const Rows& rows) {
  return {result.out.narrow(2, rows.begin, rows.size()),
          result.lse.narrow(2, rows.begin, rows.size())};
}

/// What ranks with the same queries found in their own keys, merged. Collective.
void merge_over_ranks(BlockResult& result, const DeviceMesh& mesh) {
  Tensor maximum = result.lse.clone();
  mesh.comm().all_reduce(maximum, ReduceOp::Max);
  maximum = finite(maximum);
  const Tensor weight = (result.lse - maximum).exp_().unsqueeze(-1);
  Tensor message = at::cat({result.out * weight, weight}, -1);
  mesh.comm().all_reduce(message);
  const int64_t width = result.out.size(-1);
  const Tensor sum = message.narrow(-1, width, 1);
  result.out = message.narrow(-1, 0, width) / (sum + (sum == 0));
  result.lse = sum.squeeze(-1).log() + maximum;
}

BlockResult attend_all(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                       const AttentionPlan& plan) {
  const auto options = q.options().dtype(accumulating_dtype(q.scalar_type()));
  BlockResult result{
      at::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, options),
      at::full(q.sizes().slice(0, 3), -std::numeric_limits<double>::infinity(), options)};
  const Blocks blocks(plan, k, v);
  Pair held = blocks.own();
  for (int64_t step = 0; step < blocks.count(); ++step) {
    each_part(plan, q, held, blocks.rows(step), mask,
              [&](const View& part) { merge(rows_of(result, part.queries), attend(part.block)); });
    if (step + 1 == blocks.count()) break;
    const Pair next = blocks.empty(step + 1, k.scalar_type());
    Ring(plan.mesh).pass({held.buffer}, {next.buffer});
    held = next;
  }
  if (plan.reach == AttentionPlan::Reach::Merge) merge_over_ranks(result, plan.mesh);
  result.lse = finite(result.lse);
  return result;
}

struct Wanted {
  bool keys = false;  ///< gradients of k or v
  bool mask = false;
};

/// Adds the gradients of one block to `sums` (rows of the block, mask: columns of the whole).
void add_gradients(const BlockGradients& sums, const BlockGradients& found, const View& part,
                   const Rows& rows, const Wanted& wanted) {
  sums.q.narrow(2, part.queries.begin, part.queries.size()).add_(found.q);
  if (wanted.keys) {
    const int64_t begin = part.columns.begin - rows.begin;
    sums.k.narrow(2, begin, part.columns.size()).add_(found.k);
    sums.v.narrow(2, begin, part.columns.size()).add_(found.v);
  }
  if (wanted.mask) {
    const Tensor there = mask_rows(mask_rows(sums.mask, -1, part.columns), -2, part.queries);
    there.add_(found.mask.sum_to_size(there.sizes()));
  }
}

struct Inputs {
  Tensor q, k, v, mask;
};

BlockGradients gradients_at_once(const Tensor& gradient, const Inputs& in,
                                 const BlockResult& result, const AttentionPlan& plan,
                                 const Wanted& wanted) {
  const auto dtype = accumulating_dtype(in.q.scalar_type());
  const auto zeros_like = [&](const Tensor& t) {
    return at::zeros(t.sizes(), t.options().dtype(dtype));
  };
  BlockGradients sums{zeros_like(in.q), Tensor(), Tensor(),
                      wanted.mask ? zeros_like(in.mask) : Tensor()};
  const Blocks blocks(plan, in.k, in.v);
  Pair held = blocks.own();
  Pair of_keys = wanted.keys ? blocks.zeros(0, dtype) : Pair();
  for (int64_t step = 0; step < blocks.count(); ++step) {
    sums.k = of_keys.k;
    sums.v = of_keys.v;
    const Rows rows = blocks.rows(step);
    each_part(plan, in.q, held, rows, in.mask, [&](const View& part) {
      const Tensor g = gradient.narrow(2, part.queries.begin, part.queries.size());
      const auto found = attend_backward(g, part.block, rows_of(result, part.queries), wanted.mask);
      add_gradients(sums, found, part, rows, wanted);
    });
    if (!blocks.travel()) break;
    const bool is_last = step + 1 == blocks.count();
    std::vector<Tensor> sends;
    std::vector<Tensor> receives;
    if (!is_last) {
      const Pair next = blocks.empty(step + 1, in.k.scalar_type());
      sends.push_back(held.buffer);
      receives.push_back(next.buffer);
      held = next;
    }
    if (wanted.keys) {
      const Pair next = blocks.empty(step + 1, dtype);
      sends.push_back(of_keys.buffer);
      receives.push_back(next.buffer);
      of_keys = next;
    }
    if (!sends.empty()) Ring(plan.mesh).pass(sends, receives);
  }
  sums.k = of_keys.k;
  sums.v = of_keys.v;
  return sums;
}

// ---- the same of differentiable ops

/// Keys or values of all ranks, for use by other queries on every rank.
Tensor gathered(const Tensor& own, const AttentionPlan& plan) {
  if (plan.reach != AttentionPlan::Reach::Ring) return own;
  Shape shape(own.sizes());
  shape[2] = plan.all_keys();
  const auto spec = ShardTensorSpec::make(plan.mesh.layout_ref(), Shard(2), shape, plan.keys);
  return to_local(redistribute(from_local(own, plan.mesh, spec), spec->replicated()), Partial());
}

/// Its adjoint: contributions to the rows of all ranks, summed where they belong.
Tensor scattered(const Tensor& all, const AttentionPlan& plan) {
  if (plan.reach != AttentionPlan::Reach::Ring) return all;
  const auto spec = ShardTensorSpec::make(plan.mesh.layout_ref(), Partial(), all.sizes());
  return to_local(
      redistribute(from_local(all, plan.mesh, spec), spec->with(Shard(2), all.sizes(), plan.keys)));
}

/// A gradient that is the same on every rank, for use by other keys on every rank.
Tensor common(const Tensor& gradient, const AttentionPlan& plan) {
  if (plan.reach != AttentionPlan::Reach::Merge) return gradient;
  const auto spec = ShardTensorSpec::make(plan.mesh.layout_ref(), Replicate(), gradient.sizes());
  return to_local(from_local(gradient, plan.mesh, spec), Partial());
}

/// What local queries add to scores of the keys that are here: mask and -inf where nothing is seen.
Tensor added_to_scores(const Tensor& mask, const AttentionPlan& plan, const Rows& keys,
                       const at::TensorOptions& options) {
  Tensor added = at::zeros({plan.queries.size(), keys.size()}, options);
  if (plan.is_causal) {
    const auto integers = options.dtype(at::kLong);
    const Tensor i = at::arange(plan.queries.begin, plan.queries.end, integers).unsqueeze(1);
    const Tensor j = at::arange(keys.begin, keys.end, integers);
    added.masked_fill_(j > i, -std::numeric_limits<double>::infinity());
  }
  if (!mask.defined()) return added;
  return added +
         additive_mask(mask_rows(mask, -1, keys), c10::typeMetaToScalarType(options.dtype()));
}

BlockGradients differentiable_gradients(const Tensor& gradient, const Inputs& in, const Tensor& lse,
                                        const AttentionPlan& plan) {
  const auto dtype = accumulating_dtype(in.q.scalar_type());
  const bool is_merge = plan.reach == AttentionPlan::Reach::Merge;
  const auto over_ranks = [&](const Tensor& t) { return is_merge ? all_reduce(t, plan.mesh) : t; };
  const Tensor k = gathered(in.k, plan);
  const Tensor v = gathered(in.v, plan);
  const Rows keys = is_merge ? Blocks(plan, in.k, in.v).rows(0) : Rows{0, k.size(2)};
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
  const Tensor all_heads = added.expand({in.q.size(0), in.q.size(1), q.size(3), keys.size()});
  const Tensor scores =
      at::matmul(q, shared(k).transpose(-2, -1)) * plan.scale + grouped(all_heads);
  const Tensor unscaled = (scores - grouped(lse.unsqueeze(-1))).exp();
  const Tensor total = over_ranks(unscaled.sum(-1, true));
  const Tensor weights = unscaled / (total + (total == 0));
  const Tensor of_weights = at::matmul(g, shared(v).transpose(-2, -1));
  const Tensor mean = over_ranks((weights * of_weights).sum(-1, true));
  const Tensor of_scores = weights * (of_weights - mean);
  BlockGradients result;
  result.q = (at::matmul(of_scores, shared(k)) * plan.scale).reshape(in.q.sizes());
  result.k = of_shared(at::matmul(of_scores.transpose(-2, -1), q) * plan.scale);
  result.v = of_shared(at::matmul(weights.transpose(-2, -1), g));
  result.mask = of_scores.reshape(all_heads.sizes());
  return result;
}

/// The gradient of a mask from that of the scores: other columns are zero.
Tensor of_mask(const Tensor& of_scores, const Tensor& mask, const Rows& keys) {
  if (mask.size(-1) == 1) return of_scores.sum_to_size(mask.sizes());
  Shape shape(mask.sizes());
  shape.back() = keys.size();
  const int64_t after = mask.size(-1) - keys.end;
  return at::constant_pad_nd(of_scores.sum_to_size(shape), {keys.begin, after});
}

struct RingAttentionBackward final : Node {
  SavedVariable q, k, v, mask, out;
  Tensor lse;  // finite
  AttentionPlan plan;

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard lock(mutex_);
    const Inputs in{q.unpack(), k.unpack(), v.unpack(), mask.unpack()};
    // Every rank takes part in the exchanges, whether its gradient is zero or not.
    const Tensor result = out.unpack(shared_from_this());
    const Tensor g = gradients[0].defined() ? gradients[0] : at::zeros_like(result);
    const Wanted wanted{task_should_compute_output(1) || task_should_compute_output(2),
                        in.mask.defined() && task_should_compute_output(3)};
    BlockGradients found;
    if (at::GradMode::is_enabled()) {
      found = differentiable_gradients(g, in, lse, plan);
      if (wanted.mask) found.mask = of_mask(found.mask, in.mask, own_columns(in));
    } else {
      const at::AutoDispatchBelowADInplaceOrView guard;
      found = gradients_at_once(g, in, {result, lse}, plan, wanted);
    }
    return {as(found.q, in.q), as(found.k, in.k), as(found.v, in.v),
            wanted.mask ? as(found.mask, in.mask) : Tensor()};
  }

  Rows own_columns(const Inputs& in) const {
    const bool is_merge = plan.reach == AttentionPlan::Reach::Merge;
    return is_merge ? Blocks(plan, in.k, in.v).rows(0) : Rows{0, plan.all_keys()};
  }
  /// Own storage: an accumulated gradient must not be a part of a message.
  static Tensor as(const Tensor& gradient, const Tensor& input) {
    if (!gradient.defined()) return gradient;
    const bool is_part = gradient.storage().nbytes() > gradient.nbytes();
    return gradient.to(input.scalar_type(), /*non_blocking=*/false, /*copy=*/is_part);
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (auto* saved : {&q, &k, &v, &mask, &out}) saved->reset_data();
    lse = Tensor();
  }
};

bool needs_graph(const Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.defined() && tensor.requires_grad();
}

}  // namespace

int64_t AttentionPlan::all_keys() const {
  return std::accumulate(keys.begin(), keys.end(), int64_t{0});
}

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                      const AttentionPlan& plan) {
  Tensor y;
  Tensor lse;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const BlockResult result = attend_all(q, k, v, mask, plan);
    y = result.out.to(q.scalar_type());
    lse = result.lse;
  }
  if (!needs_graph(q) && !needs_graph(k) && !needs_graph(v) && !needs_graph(mask)) return y;
  auto node = std::shared_ptr<RingAttentionBackward>(new RingAttentionBackward(),
                                                     torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(q, k, v, mask));
  node->q = SavedVariable(q, false);
  node->k = SavedVariable(k, false);
  node->v = SavedVariable(v, false);
  node->mask = SavedVariable(mask, false);
  node->lse = lse;
  node->plan = plan;
  torch::autograd::set_history(y, node);
  node->out = SavedVariable(y, true);
  return y;
}

}  // namespace shard
