// SPDX-License-Identifier: Apache-2.0
#include "exchange/attention_backward.h"

#include <ATen/ops/zeros.h>

#include <optional>

#include "exchange/key_blocks.h"

namespace shard {
namespace {

using at::Tensor;

/// Gradients that this rank found for keys of others, on their way home, and others' for its own.
class Homecoming {
 public:
  Homecoming(const KeyBlocks& blocks, const DeviceMesh& mesh, at::ScalarType dtype)
      : blocks_(blocks), mesh_(mesh), dtype_(dtype) {}

  void add(int64_t step, const Pair& found) { waiting_.push_back({step, found}); }
  /// Loads what waits.
  void board(Cargo& cargo) {
    const Ring ring(mesh_);
    for (auto& [step, found] : waiting_) {
      cargo.send(ring.owner(step), found.buffer);
      const Pair arriving = blocks_.empty(0, dtype_);
      cargo.receive(ring.holder(step), arriving.buffer);
      arriving_.push_back(arriving.buffer);
    }
    waiting_.clear();
  }
  /// After the exchange.
  void arrive(const Pair& sum) {
    for (const Tensor& buffer : arriving_) sum.buffer.add_(buffer);
    arriving_.clear();
  }

 private:
  struct Found {
    int64_t step = 0;
    Pair gradients;
  };
  const KeyBlocks& blocks_;
  const DeviceMesh& mesh_;
  at::ScalarType dtype_;
  std::vector<Found> waiting_;
  std::vector<Tensor> arriving_;
};

/// Adds the gradients of one part of a block (`keys`: of the whole block) to the sums.
void add_gradients(const BlockGradients& sums, const Pair& keys, const BlockGradients& found,
                   const SeenPart& part, const Wanted& wanted) {
  sums.q.narrow(2, part.queries.begin, part.queries.size()).add_(found.q);
  if (wanted.keys) {
    keys.k.narrow(2, part.keys.begin, part.keys.size()).add_(found.k);
    keys.v.narrow(2, part.keys.begin, part.keys.size()).add_(found.v);
  }
  if (wanted.mask) {
    const Tensor there = mask_rows(mask_rows(sums.mask, -1, part.columns), -2, part.queries);
    there.add_(found.mask.sum_to_size(there.sizes()));
  }
}

class BackwardPass {
 public:
  BackwardPass(const Tensor& gradient, const Inputs& in, const BlockResult& result,
               const AttentionPlan& plan, const Wanted& wanted)
      : gradient_(gradient),
        in_(in),
        result_(result),
        plan_(plan),
        wanted_(wanted),
        dtype_(accumulating_dtype(in.q.scalar_type())),
        blocks_(plan, in.k, in.v),
        home_(blocks_, plan.mesh, dtype_) {}

  BlockGradients run() {
    sums_.q = zeros_like(in_.q);
    if (wanted_.mask) sums_.mask = zeros_like(in_.mask);
    if (wanted_.keys) own_ = blocks_.zeros(0, dtype_);
    const bool goes_home = blocks_.travel() && wanted_.keys;
    const Rows all{0, in_.q.size(2)};
    const Rows first{0, goes_home && blocks_.overlap() ? all.end / 2 : all.end};
    Pair held = blocks_.own();
    for (int64_t step = 0; step < blocks_.count(); ++step) {
      held = use(step, held, step == 0 ? first : all);
    }
    if (goes_home) {
      Cargo cargo;
      home_.board(cargo);
      auto travel = std::move(cargo).start(plan_.mesh, blocks_.overlap());
      add_block(0, {Tensor(), in_.k, in_.v}, own_, {first.end, all.end});
      travel.wait();
      home_.arrive(own_);
    }
    sums_.k = own_.k;
    sums_.v = own_.v;
    return std::move(sums_);
  }

 private:
  Tensor zeros_like(const Tensor& t) const {
    return at::zeros(t.sizes(), t.options().dtype(dtype_));
  }

  /// Returns the next block. The gradients of the last two go home together, after the last block:
  /// so one exchange is saved.
  Pair use(int64_t step, const Pair& held, const Rows& queries) {
    Pair next;
    std::optional<Pending<std::vector<Tensor>>> travel;
    if (step + 1 < blocks_.count()) {
      next = blocks_.empty(step + 1, in_.k.scalar_type());
      Cargo cargo;
      pass_on(cargo, held, next, plan_.mesh);
      home_.board(cargo);
      travel = std::move(cargo).start(plan_.mesh, blocks_.overlap());
    }
    const Pair found = wanted_.keys && step > 0 ? blocks_.zeros(step, dtype_) : own_;
    add_block(step, held, found, queries);
    if (travel) travel->wait();
    home_.arrive(own_);
    if (wanted_.keys && step > 0) home_.add(step, found);
    return next;
  }

  void add_block(int64_t step, const Pair& held, const Pair& found, const Rows& queries) {
    if (in_.q.size(0) == 0 || in_.q.size(1) == 0) return;
    for (const auto& part : seen_parts(plan_, blocks_, step, queries)) {
      const Tensor g = gradient_.narrow(2, part.queries.begin, part.queries.size());
      const auto gradients = attend_backward(g, block_of(part, in_.q, held, in_.mask, plan_),
                                             rows_of(result_, part.queries), wanted_.mask);
      add_gradients(sums_, found, gradients, part, wanted_);
    }
  }

  const Tensor& gradient_;
  const Inputs& in_;
  const BlockResult& result_;
  const AttentionPlan& plan_;
  const Wanted wanted_;
  const at::ScalarType dtype_;
  const KeyBlocks blocks_;
  Homecoming home_;
  BlockGradients sums_;
  Pair own_;  ///< of this rank's own keys
};

}  // namespace

BlockGradients attention_gradients(const Tensor& gradient, const Inputs& in,
                                   const BlockResult& result, const AttentionPlan& plan,
                                   const Wanted& wanted) {
  return BackwardPass(gradient, in, result, plan, wanted).run();
}

}  // namespace shard
