// SPDX-License-Identifier: Apache-2.0
// Hand-written nodes rather than autograd::Function: a third of the cost, and these run in every
// op.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <shard/memory_order.h>
#include <shard/primitives.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "tensor/grid.h"
#include "tensor/impl.h"
#include "tensor/leaf_hook.h"
#include "tensor/redistribute.h"

namespace shard {
namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::variable_list;

bool needs_graph(const Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
}

/// Forward-mode AD passes through LibTorch's formulas but not through these nodes: refuse, never
/// lose it.
void refuse_tangent(const char* where, const Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta && meta->fw_grad_) [[unlikely]] {
    check<SpecMismatch>(!tensor._fw_grad(0).defined(), where,
                        "got a dual tensor (forward-mode AD); expected a tensor without tangent. "
                        "Forward-mode AD works for ops without a function patch only.");
  }
}

template <class N>
std::shared_ptr<N> make_node(const Tensor& input) {
  auto node = std::shared_ptr<N>(new N(), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  return node;
}

const ShardTensorImpl& checked_impl(const char* where, const Tensor& tensor) {
  const auto* impl = impl_of(tensor);
  check<SpecMismatch>(
      impl != nullptr, where, "got ", tensor.defined() ? "a plain tensor" : "an undefined tensor",
      "; expected a ShardTensor. Make one with shard::scatter_tensor or shard::from_local.");
  return *impl;
}

struct MeshNode : Node {
  DeviceMesh mesh;
  SpecRef spec;
};

struct ToLocalBackward final : MeshNode {
  variable_list apply(variable_list&& gradients) override {
    return {gradients[0].defined() ? from_local(gradients[0], mesh, spec) : Tensor()};
  }
};

struct FromLocalBackward final : MeshNode {
  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {Tensor()};
    const Tensor gradient = redistribute(promote(gradients[0], mesh), dual_spec(spec));
    // Ranks use the gradient of a sum of contributions each in its own way.
    if (!spec->is_partial()) return {to_local(gradient)};
    const Tensor local = to_local(gradient, Partial());
    return {spec->placement().op() == ReduceOp::Avg ? local / mesh.size() : local};
  }
};

struct RedistributeBackward final : MeshNode {
  variable_list apply(variable_list&& gradients) override {
    return {gradients[0].defined() ? redistribute(promote(gradients[0], mesh), spec) : Tensor()};
  }
};

struct RedistributeGridBackward final : Node {
  Grid grid;
  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {Tensor()};
    return {redistribute(promote(gradients[0], grid.mesh.flattened(grid.cuts[0].mesh_dims)), grid)};
  }
};

struct AllReduceBackward final : MeshNode {
  variable_list apply(variable_list&& gradients) override {
    return {gradients[0].defined() ? all_reduce(gradients[0], mesh) : Tensor()};
  }
};

}  // namespace

bool is_shard_tensor(const Tensor& tensor) { return impl_of(tensor) != nullptr; }
const SpecRef& spec_of(const Tensor& tensor) { return checked_impl("spec_of", tensor).spec(); }
const DeviceMesh& mesh_of(const Tensor& tensor) { return checked_impl("mesh_of", tensor).mesh(); }
const Tensor& raw_local(const Tensor& tensor) { return checked_impl("raw_local", tensor).local(); }

SpecRef dual_spec(const SpecRef& spec) { return spec->is_partial() ? spec->replicated() : spec; }

Tensor to_local(const Tensor& tensor, std::optional<Placement> gradient) {
  const auto& impl = checked_impl("to_local", tensor);
  refuse_tangent("to_local", tensor);
  if (!needs_graph(tensor)) return impl.local();
  const auto& spec = impl.spec();
  check<SpecMismatch>(!spec->is_partial() || impl.mesh().size() == 1, "to_local", "got ", *spec,
                      " that requires grad; expected Shard or Replicate. Its contributions have no "
                      "gradient of their own: redistribute() first.");
  ensure_leaf_hook(tensor);
  auto node = make_node<ToLocalBackward>(tensor);
  node->mesh = impl.mesh();
  node->spec = gradient && spec->is_replicate() ? spec->with(*gradient, spec->global_shape())
                                                : dual_spec(spec);
  Tensor local = local_alias(impl.local());
  torch::autograd::set_history(local, node);
  return local;
}

Tensor uncut(const Tensor& tensor, int64_t dim) {
  const auto& spec = spec_of(tensor);
  if (spec->placement().is_shard(dim)) return redistribute(tensor, spec->replicated());
  return from_local(uncut(to_local(tensor), dim), mesh_of(tensor), spec);
}

Tensor from_local(const Tensor& part, const DeviceMesh& mesh, const SpecRef& spec) {
  if (spec->is_shard() && is_cut_along(part, spec->shard_dim())) [[unlikely]] {
    return from_local(uncut(part, spec->shard_dim()), mesh, spec);
  }
  const Tensor local = in_common_order(part, *spec);
  check<SpecMismatch>(c10::IntArrayRef(spec->local_shape(mesh.rank())) == local.sizes(),
                      "from_local", "got a local tensor of ", local.sizes(), " on rank ",
                      mesh.rank(), "; expected ", c10::IntArrayRef(spec->local_shape(mesh.rank())),
                      " for ", *spec, ".");
  refuse_tangent("from_local", local);
  // LibTorch's formulas return zero tensors without storage (_efficientzerotensor).
  if (local._is_zerotensor()) [[unlikely]]
    return from_local(local.clone(), mesh, spec);
  if (!needs_graph(local)) {
    return wrap(local.requires_grad() ? local_alias(local) : local, mesh, spec);
  }
  const bool linear = !spec->is_partial() || spec->placement().op() == ReduceOp::Sum ||
                      spec->placement().op() == ReduceOp::Avg;
  check<SpecMismatch>(
      linear || mesh.size() == 1, "from_local", "got ", *spec,
      " with a local tensor that requires grad; expected a sum or avg of contributions.");
  auto node = make_node<FromLocalBackward>(local);
  node->mesh = mesh;
  node->spec = spec;
  Tensor result = wrap(local_alias(local), mesh, spec);
  torch::autograd::set_history(result, node);
  return result;
}

Tensor redistribute(const Tensor& tensor, const SpecRef& target) {
  const auto& impl = checked_impl("redistribute", tensor);
  const auto& spec = impl.spec();
  if (same(spec, target)) return tensor;
  check<SpecMismatch>(
      spec->global_shape() == target->global_shape() && spec->mesh() == target->mesh(),
      "redistribute", "got ", *spec, " -> ", *target, "; expected the same global shape and mesh.");
  refuse_tangent("redistribute", tensor);
  Tensor local;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    local = in_common_order(redistribute_local(impl.local(), *spec, *target, impl.mesh()), *target);
    if (local.is_same(impl.local())) local = local_alias(local);
  }
  Tensor result = wrap(std::move(local), impl.mesh(), target);
  if (needs_graph(tensor)) {
    ensure_leaf_hook(tensor);
    auto node = make_node<RedistributeBackward>(tensor);
    node->mesh = impl.mesh();
    node->spec = dual_spec(spec);
    torch::autograd::set_history(result, node);
  }
  return result;
}

Tensor redistribute(const Tensor& tensor, const Grid& target) {
  const auto& impl = checked_impl("redistribute", tensor);
  const Grid grid = Grid::of(impl);
  check<SpecMismatch>(grid.shape == target.shape && grid.mesh.layout() == target.mesh.layout(),
                      "redistribute", "got a tensor of ", tensor.sizes(), " on ",
                      grid.mesh.layout(), " to move to ", c10::IntArrayRef(target.shape), " on ",
                      target.mesh.layout(), "; expected the same global shape and mesh.");
  if (grid.same_layout(target)) return tensor;
  refuse_tangent("redistribute", tensor);
  Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor& own = innermost(tensor);
    Tensor local = redistribute_local(own, grid, target);
    for (const auto& level : target.levels()) local = in_common_order(local, *level.spec);
    if (local.is_same(own)) local = local_alias(local);
    result = wrap(local, target);
  }
  if (needs_graph(tensor)) {
    ensure_leaf_hook(tensor);
    auto node = make_node<RedistributeGridBackward>(tensor);
    node->grid = grid.dual();
    torch::autograd::set_history(result, node);
  }
  return result;
}

Tensor all_reduce(const Tensor& local, const DeviceMesh& mesh) {
  if (mesh.size() == 1) return local;
  Tensor sum;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    sum = local.clone();
    mesh.comm().all_reduce(sum);
  }
  if (needs_graph(local)) {
    auto node = make_node<AllReduceBackward>(local);
    node->mesh = mesh;
    torch::autograd::set_history(sum, node);
  }
  return sum;
}

Tensor common_sum(const Tensor& local, const DeviceMesh& mesh) {
  const auto spec = ShardTensorSpec::make(mesh.layout_ref(), Partial(), local.sizes());
  return to_local(redistribute(from_local(local, mesh, spec), spec->replicated()));
}

Tensor all_gather_stack(const Tensor& local, const DeviceMesh& mesh) {
  const Tensor row = local.unsqueeze(0);
  if (mesh.size() == 1) return row;
  Shape shape(row.sizes().begin(), row.sizes().end());
  shape[0] = mesh.size();
  const auto spec = ShardTensorSpec::make(mesh.layout_ref(), Shard(0), shape);
  return to_local(redistribute(from_local(row, mesh, spec), spec->replicated()));
}

}  // namespace shard
