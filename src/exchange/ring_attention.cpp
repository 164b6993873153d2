// SPDX-License-Identifier: Apache-2.0
// NOTE [Ring attention]
// Forward: every rank attends to its own block of keys while it passes the block on, then to the
// one that it got, and so on; results are merged by the logarithms of their sums of weights (Liu,
// Zaharia, Abbeel: Ring Attention with Blockwise Transformers). Saved: inputs, output and one
// number a query. Backward: with the merged output and logarithm each block's gradients are those
// of the whole. The blocks travel again; what a rank finds for the keys of another goes straight to
// that one while the next block is computed, and is added there in the order of the steps. The last
// gradients have no next block to travel beside: half of the own one is kept for them. Which blocks
// are skipped under a causal mask follows from the plan; the exchanges are the same.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <shard/count_rows.h>
#include <shard/ring_attention.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <limits>
#include <optional>

#include "exchange/attention_backward.h"
#include "exchange/key_blocks.h"

namespace shard {
namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Travel = Pending<std::vector<Tensor>>;

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

/// Results of parts of the keys, merged as they come.
class Merged {
 public:
  Merged(const Tensor& q, const Tensor& v) : q_(q), v_(v) {}

  void add(const SeenPart& part, const BlockResult& found) {
    if (!is_begun_ && part.queries.size() == q_.size(2)) {
      result_ = {found.out.to(dtype()), found.lse};
      is_begun_ = true;
      return;
    }
    begin();
    merge(rows_of(result_, part.queries), found);
  }
  BlockResult take() {
    begin();
    return std::move(result_);
  }

 private:
  at::ScalarType dtype() const { return accumulating_dtype(q_.scalar_type()); }
  void begin() {
    if (is_begun_) return;
    is_begun_ = true;
    const auto options = q_.options().dtype(dtype());
    result_ = {at::zeros({q_.size(0), q_.size(1), q_.size(2), v_.size(3)}, options),
               at::full(q_.sizes().slice(0, 3), -std::numeric_limits<double>::infinity(), options)};
  }

  const Tensor& q_;
  const Tensor& v_;
  BlockResult result_;
  bool is_begun_ = false;
};

BlockResult attend_all(const Inputs& in, const AttentionPlan& plan) {
  const KeyBlocks blocks(plan, in.k, in.v);
  Merged merged(in.q, in.v);
  Pair held = blocks.own();
  for (int64_t step = 0; step < blocks.count(); ++step) {
    Pair next;
    std::optional<Travel> travel;
    if (step + 1 < blocks.count()) {
      next = blocks.empty(step + 1, in.k.scalar_type());
      Cargo cargo;
      pass_on(cargo, held, next, plan.mesh);
      travel = std::move(cargo).start(plan.mesh, blocks.overlap());
    }
    if (in.q.size(0) > 0 && in.q.size(1) > 0) {
      for (const auto& part : seen_parts(plan, blocks, step, {0, in.q.size(2)})) {
        merged.add(part, attend(block_of(part, in.q, held, in.mask, plan)));
      }
    }
    if (travel) travel->wait();
    held = next;
  }
  BlockResult result = merged.take();
  if (plan.reach == AttentionPlan::Reach::Merge) merge_over_ranks(result, plan.mesh);
  return result;
}

// ---- backward

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
      found = differentiable_gradients(g, in, lse, plan, wanted.mask);
    } else {
      const at::AutoDispatchBelowADInplaceOrView guard;
      found = attention_gradients(g, in, {result, lse}, plan, wanted);
    }
    return {as(found.q, in.q), as(found.k, in.k), as(found.v, in.v), as(found.mask, in.mask)};
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

int64_t AttentionPlan::own_queries() const { return total_of(queries); }

Partition AttentionPlan::key_sizes() const {
  Partition sizes;
  for (const auto& of_rank : keys) sizes.push_back(total_of(of_rank));
  return sizes;
}

int64_t AttentionPlan::all_keys() const { return total_of(key_sizes()); }

int64_t visible_pairs(const AttentionPlan& plan) {
  int64_t pairs = 0;
  for (const Rows& queries : plan.queries) {
    for (const auto& of_rank : plan.keys) {
      for (const Rows& keys : of_rank) {
        for (const auto& part : visible_parts(queries, keys, plan.is_causal)) {
          const int64_t n = part.keys.size();  // a causal part: a triangle, then whole rows
          pairs += part.is_causal ? n * (n + 1) / 2 + (part.queries.size() - n) * n
                                  : part.queries.size() * n;
        }
      }
    }
  }
  return pairs;
}

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                      const AttentionPlan& plan) {
  Tensor y;
  Tensor lse;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const BlockResult result = attend_all({q, k, v, mask}, plan);
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
  node->lse = finite(lse);
  node->plan = plan;
  torch::autograd::set_history(y, node);
  node->out = SavedVariable(y, true);
  return y;
}

}  // namespace shard
