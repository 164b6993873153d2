// SPDX-License-Identifier: Apache-2.0
// NOTE [Regrouping]
// Over a mesh of several dims, a tensor dim that two of them cut is one level over both; a tensor
// that only one of them cuts has a level for each. The two cannot meet level by level. So before an
// op all tensors are moved to the levels of one of them: of the one that is written, else of the
// largest (of the first where places see other sizes). What has its number of dims is cut like it;
// what has not becomes whole.
#include "dispatch/regroup.h"

#include <shard/describe.h>
#include <shard/outermost.h>
#include <shard/patch.h>

#include "dispatch/op_info.h"
#include "dispatch/stack.h"
#include "tensor/grid.h"
#include "tensor/impl.h"

namespace shard {
namespace {

using at::Tensor;

/// As far down as both have levels: below, a plain tensor counts as Replicate.
bool have_same_levels(const ShardTensorImpl* a, const ShardTensorImpl* b) {
  for (; a && b; a = impl_of(a->local()), b = impl_of(b->local())) {
    if (a->mesh().layout_ref() != b->mesh().layout_ref() &&
        !(a->mesh().layout() == b->mesh().layout())) {
      return false;
    }
  }
  return true;
}

bool have_same_mesh(const ShardTensorImpl* a, const ShardTensorImpl* b) {
  return a->mesh().root().layout() == b->mesh().root().layout();
}

Tensor like(const Tensor& tensor, const Tensor& anchor) {
  if (!detail::have_other_levels(tensor, anchor)) return tensor;
  if (tensor.dim() != anchor.dim()) return ShardTensor(tensor).full();
  const Grid target = Grid::of(anchor).dual();
  if (tensor.sizes() == anchor.sizes()) return redistribute(tensor, target);
  return redistribute(tensor, Grid::make(target.mesh, target.placements(), tensor.sizes()));
}

}  // namespace

bool detail::have_other_levels(const Tensor& a, const Tensor& b) {
  const auto* x = impl_of(a);
  const auto* y = impl_of(b);
  return x && y && !have_same_levels(x, y) && have_same_mesh(x, y);
}

void detail::call_regrouped(const c10::OperatorHandle& op, c10::DispatchKeySet,
                            torch::jit::Stack* stack) {
  regroup(op_info(op), stack);
  op.callBoxed(stack);
}

void regroup(const OpInfo& info, torch::jit::Stack* stack) {
  const size_t begin = stack->size() - info.writes.size();
  Tensor first;
  Tensor anchor;
  bool differ = false;
  bool is_written = false;
  for (size_t i = begin; i < stack->size(); ++i) {
    for_each_tensor((*stack)[i], [&](const Tensor& tensor) {
      const auto* impl = impl_of(tensor);
      if (!impl) return;
      if (!first.defined()) first = tensor;
      differ |= detail::have_other_levels(first, tensor);
      const bool writes = info.writes[i - begin];
      const bool is_larger =
          !anchor.defined() || (sees_global_sizes(impl->mesh()) && tensor.numel() > anchor.numel());
      if (is_written || !(writes || is_larger)) return;
      anchor = tensor;
      is_written = writes;
    });
  }
  if (!differ) return;
  for (size_t i = begin; i < stack->size(); ++i) {
    map_tensors((*stack)[i], [&](const Tensor& tensor) {
      const Tensor moved = like(tensor, anchor);
      check<SpecMismatch>(!detail::have_other_levels(moved, anchor), info.name,
                          "got tensors that other groups of mesh dims cut: ", describe(tensor),
                          "\nand ", describe(anchor),
                          "; expected equal groups. redistribute() one of them.");
      return moved;
    });
  }
}

}  // namespace shard
