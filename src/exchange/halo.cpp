// SPDX-License-Identifier: Apache-2.0
// The exchange and its adjoint. Each is the other's backward, so both are differentiable any number
// of times.
#include <ATen/core/LegacyTypeDispatch.h>
#include <shard/error.h>
#include <shard/exchange.h>
#include <shard/primitives.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "exchange/box_transfers.h"
#include "tensor/impl.h"

namespace shard {
namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::variable_list;

using PlanRef = std::shared_ptr<const BoxPlan>;

Tensor zeros_box(const Tensor& like, const BoxPlan& plan, const std::vector<int64_t>& sizes) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return empty_box(like, plan, sizes).zero_();
}

std::vector<Tensor> fetch(const Tensor& local, const BoxPlan& plan, const DeviceMesh& mesh) {
  const int64_t rank = mesh.rank();
  std::vector<Tensor> shells;
  for (size_t i = 0; i < plan.dims.size(); ++i) {
    shells.push_back(empty_box(local, plan, shell_sizes(plan, rank, i)));
  }
  std::vector<Message> sends;
  std::vector<Message> receives;
  for (const auto& t : outgoing(plan, rank)) {
    sends.push_back({static_cast<int>(t.peer), part_of(local, plan, t.owned)});
  }
  for (const auto& t : incoming(plan, rank)) {
    receives.push_back({static_cast<int>(t.peer), part_of(shells[t.shell], plan, t.wanted)});
  }
  mesh.comm().exchange(sends, receives);
  return shells;
}

/// Adds the gradients of shells that other ranks send to the part of `own` they came from, in rank
/// order.
void return_shells(Tensor& own, const std::vector<Tensor>& shells, const BoxPlan& plan,
                   const DeviceMesh& mesh) {
  const int64_t rank = mesh.rank();
  const auto returned = outgoing(plan, rank);
  std::vector<Message> sends;
  std::vector<Message> receives;
  for (const auto& t : incoming(plan, rank)) {
    sends.push_back({static_cast<int>(t.peer), part_of(shells[t.shell], plan, t.wanted)});
  }
  for (const auto& t : returned) {
    std::vector<int64_t> sizes;
    for (const Extent& extent : t.owned) sizes.push_back(extent.size);
    receives.push_back({static_cast<int>(t.peer), empty_box(own, plan, sizes)});
  }
  mesh.comm().exchange(sends, receives);
  for (size_t i = 0; i < returned.size(); ++i) {
    part_of(own, plan, returned[i].owned).add_(receives[i].tensor);
  }
}

BoxHalo exchange_box(const Tensor& local, const PlanRef& plan, const DeviceMesh& mesh);
Tensor adjoint(Tensor own, const std::vector<Tensor>& shells, const PlanRef& plan,
               const DeviceMesh& mesh);

struct BoxNode : Node {
  PlanRef plan;
  DeviceMesh mesh;
  Tensor like;  // without rows
  std::vector<int64_t> own_sizes;

  Tensor or_zeros(const Tensor& gradient, const std::vector<int64_t>& sizes) const {
    return gradient.defined() ? alike(gradient, like) : zeros_box(like, *plan, sizes);
  }
  std::vector<Tensor> shells_or_zeros(const variable_list& gradients) const {
    std::vector<Tensor> shells;
    for (size_t i = 0; i < plan->dims.size(); ++i) {
      shells.push_back(or_zeros(gradients[i + 1], shell_sizes(*plan, mesh.rank(), i)));
    }
    return shells;
  }

 private:
  /// On an n-d mesh a rank's gradient may lie otherwise below this level than its peers' (that of a
  /// tensor which the ranks below use differently is Partial), but raw parts are exchanged.
  Tensor alike(const Tensor& gradient, const Tensor& model) const {
    const auto* impl = impl_of(model);
    const auto* given = impl_of(gradient);
    if (!impl || !given || !(given->mesh().layout() == impl->mesh().layout())) return gradient;
    const auto spec = dual_spec(impl->spec());
    const Tensor moved =
        redistribute(gradient, spec->with(spec->placement(), gradient.sizes(), spec->partition()));
    if (!impl_of(impl->local())) return moved;
    return from_local(alike(to_local(moved), impl->local()), impl->mesh(), spec_of(moved));
  }
};

struct ExchangeBackward final : BoxNode {
  variable_list apply(variable_list&& gradients) override {
    // Always all: the exchange is collective, whether this rank's gradients are zero or not.
    Tensor own = or_zeros(std::exchange(gradients[0], {}), own_sizes);
    return {adjoint(std::move(own), shells_or_zeros(gradients), plan, mesh)};
  }
};

struct AdjointBackward final : BoxNode {
  variable_list apply(variable_list&& gradients) override {
    auto halo = exchange_box(or_zeros(gradients[0], own_sizes), plan, mesh);
    variable_list result{halo.own};
    result.insert(result.end(), halo.shells.begin(), halo.shells.end());
    return result;
  }
};

bool needs_graph(const Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
}

template <class N>
std::shared_ptr<N> make_node(const PlanRef& plan, const DeviceMesh& mesh, const Tensor& local,
                             const variable_list& inputs) {
  auto node = std::shared_ptr<N>(new N(), torch::autograd::deleteNode);
  node->plan = plan;
  node->mesh = mesh;
  for (const auto& dim : plan->dims) node->own_sizes.push_back(local.size(dim.dim));
  node->like = empty_box(local, *plan, std::vector<int64_t>(plan->dims.size(), 0));
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  return node;
}

BoxHalo exchange_box(const Tensor& local, const PlanRef& plan, const DeviceMesh& mesh) {
  BoxHalo halo{local, {}};
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    halo.shells = fetch(local, *plan, mesh);
  }
  if (!needs_graph(local)) return halo;
  auto node = make_node<ExchangeBackward>(plan, mesh, local, {local});
  halo.own = local_alias(local);
  torch::autograd::set_history(halo.own, node);
  for (const Tensor& shell : halo.shells) torch::autograd::set_history(shell, node);
  return halo;
}

/// A gradient that nobody else holds may be overwritten.
bool is_exclusive(const Tensor& gradient) {
  return gradient.use_count() == 1 && gradient.has_storage() &&
         gradient.storage().use_count() == 1 && gradient.is_non_overlapping_and_dense();
}

// `own` by value: only so can it be seen that nobody else holds it.
Tensor adjoint(Tensor own,  // NOLINT(performance-unnecessary-value-param)
               const std::vector<Tensor>& shells, const PlanRef& plan, const DeviceMesh& mesh) {
  const bool graph = needs_graph(own) || std::any_of(shells.begin(), shells.end(), &needs_graph);
  Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    result = !graph && is_exclusive(own) ? own : own.clone();
    return_shells(result, shells, *plan, mesh);
  }
  if (graph) {
    variable_list inputs{own};
    inputs.insert(inputs.end(), shells.begin(), shells.end());
    auto node = make_node<AdjointBackward>(plan, mesh, result, inputs);
    torch::autograd::set_history(result, node);
  }
  return result;
}

}  // namespace

Halo exchange_halo(const Tensor& local, const HaloPlan& plan, const DeviceMesh& mesh) {
  if (!plan.communicates()) return {local, local.narrow(plan.dim, 0, 0)};
  const auto box = exchange_box(local, BoxPlan{{plan}, {}}, mesh);
  return {box.own, box.shells[0]};
}

BoxHalo exchange_box(const Tensor& local, const BoxPlan& plan, const DeviceMesh& mesh) {
  if (plan.communicates()) {
    return exchange_box(local, std::make_shared<const BoxPlan>(plan), mesh);
  }
  BoxHalo halo{local, {}};
  for (const auto& dim : plan.dims) halo.shells.push_back(local.narrow(dim.dim, 0, 0));
  return halo;
}

}  // namespace shard
