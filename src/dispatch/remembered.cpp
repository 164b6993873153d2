// SPDX-License-Identifier: Apache-2.0
#include "dispatch/remembered.h"

#include <shard/rule.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace shard {
namespace {

struct RememberedSpec final : torch::autograd::FunctionPreHook {
  explicit RememberedSpec(SpecRef spec) : spec(std::move(spec)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    return gradients;
  }
  SpecRef spec;
};

}  // namespace

void remember_input(const at::Tensor& output, const SpecRef& spec) {
  if (!output.defined()) return;
  if (const auto& node = output.grad_fn())
    node->add_pre_hook(std::make_unique<RememberedSpec>(spec));
}

/// Of a node that remembers an input, but none of these sizes over this mesh, the input was whole
/// here: a tensor of the gradient's sizes is not meant, even where they are the same on some ranks.
std::optional<Layout> remembered_layout(const DeviceMesh& mesh, c10::IntArrayRef sizes) {
  const auto node = torch::autograd::get_current_node();
  if (!node) return std::nullopt;
  std::optional<Layout> layout;
  for (const auto& hook : node->pre_hooks()) {
    const auto* remembered = dynamic_cast<const RememberedSpec*>(hook.get());
    if (!remembered) continue;
    const auto& spec = *remembered->spec;
    if (spec.global_shape() == sizes && spec.mesh() == mesh.layout()) return Layout(spec);
    layout = Layout();
  }
  return layout;
}

}  // namespace shard
