// SPDX-License-Identifier: Apache-2.0
#include "tensor/leaf_hook.h"

#include <shard/primitives.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "tensor/grid.h"
#include "tensor/impl.h"

namespace shard {
namespace {

using torch::autograd::variable_list;

/// Level by level, as far as the levels are over the same mesh dims.
at::Tensor lying_like(const at::Tensor& tensor, const ShardTensorImpl& leaf) {
  const at::Tensor whole = promote(tensor, leaf.mesh());
  if (!(spec_of(whole)->mesh() == leaf.spec()->mesh())) {
    return redistribute(whole, Grid::of(leaf).dual());
  }
  const auto spec = dual_spec(leaf.spec());
  const at::Tensor gradient = redistribute(whole, spec);
  const auto* inner = impl_of(leaf.local());
  if (!inner) return gradient;
  const at::Tensor local = to_local(gradient);
  const at::Tensor aligned = lying_like(local, *inner);
  return aligned.is_same(local) ? gradient : from_local(aligned, leaf.mesh(), spec);
}

struct LeafHook final : torch::autograd::FunctionPreHook {
  explicit LeafHook(const ShardTensorImpl* leaf) : leaf(leaf) {}

  variable_list operator()(const variable_list& gradients) override {
    if (!gradients[0].defined()) return gradients;
    return {lying_like(gradients[0], *leaf)};  // its current spec: set_data may have changed it
  }

  const ShardTensorImpl* leaf;  // owns the autograd meta that owns this hook
};

}  // namespace

void ensure_leaf_hook(const at::Tensor& tensor) {
  auto* impl = impl_of(tensor);
  if (!impl || impl->has_leaf_hook || !tensor.requires_grad() || !tensor.is_leaf()) return;
  impl->has_leaf_hook = true;
  // In front of the leaf's own list, however late it is added: user hooks, retained and accumulated
  // gradients all see the leaf's placement. register_hook would come after hooks the user added
  // before.
  auto& hooks = torch::autograd::impl::get_autograd_meta(tensor)->hooks_;
  hooks.insert(hooks.begin(), std::make_unique<LeafHook>(impl));
}

}  // namespace shard
