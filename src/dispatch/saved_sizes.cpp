// SPDX-License-Identifier: Apache-2.0
// Gradient formulas of LibTorch that make plain zeros of sizes which their autograd node saved: of
// a ShardTensor these are the global ones. After the op its node is changed so that a single zero
// stands for all of them.
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/library.h>

#include <algorithm>

#include "dispatch/function_fallback.h"
#include "dispatch/stack.h"

namespace shard {
namespace {

namespace autograd = torch::autograd;
using at::Tensor;
using autograd::Node;
using torch::jit::Stack;

// ---- index_put: the gradient of what is written into has zeros where values were put

/// Of a view that was written into, the node lies within the one of its base.
std::shared_ptr<Node> node_of_written(const Tensor& tensor) {
  const auto node = (tensor.is_view() ? tensor._base() : tensor).grad_fn();
  const auto* slices = dynamic_cast<const autograd::CopySlices*>(node.get());
  return slices ? slices->fn : node;
}

template <class Backward>
void put_one_zero(Node* node) {
  if (auto* backward = dynamic_cast<Backward*>(node)) backward->values_info.sym_sizes.clear();
}

void put(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  function_fallback(op, keys, stack);
  const auto node = node_of_written(stack->back().toTensor());
  put_one_zero<autograd::generated::IndexPutBackward0>(node.get());
  put_one_zero<autograd::generated::IndexPutImplBackward0>(node.get());
}

// ---- split: parts without a gradient have zeros

/// Expanded, these take no memory; cat then cuts them.
struct ZerosForNone final : autograd::FunctionPreHook {
  explicit ZerosForNone(const Node& node) : node(node) {}
  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    autograd::variable_list all = gradients;
    const auto given =
        std::find_if(all.begin(), all.end(), [](const Tensor& t) { return t.defined(); });
    if (given == all.end()) return all;
    const Tensor zero = at::zeros({}, given->options());
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i].defined())
        all[i] = zero.expand_symint(node.input_metadata(i).shape_as_dim_vector());
    }
    return all;
  }
  const Node& node;  // that owns this hook
};

void split(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  function_fallback(op, keys, stack);
  if (!at::GradMode::is_enabled()) return;
  const auto parts = stack->back().toListRef();
  if (parts.size() < 2) return;
  if (const auto node = parts[0].toTensor().grad_fn()) {
    node->add_pre_hook(std::make_unique<ZerosForNone>(*node));
  }
}

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) {
  for (const char* op : {"index_put", "index_put_", "_index_put_impl_"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&put>());
  }
  for (const char* op : {"split.Tensor", "split_with_sizes", "unsafe_split.Tensor",
                         "unsafe_split_with_sizes", "split_copy.Tensor", "split_with_sizes_copy"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&split>());
  }
}

}  // namespace
}  // namespace shard
