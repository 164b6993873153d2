// SPDX-License-Identifier: Apache-2.0
// The exchange and its adjoint. Each is the other's backward, so both are differentiable any number
// of times.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <shard/error.h>
#include <shard/exchange.h>
#include <shard/primitives.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>

#include "tensor/impl.h"

namespace shard {
namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::variable_list;

using PlanRef = std::shared_ptr<const HaloPlan>;

struct Transfer {
  int64_t peer;
  int64_t owner_row;  ///< first row in the owner's local tensor
  int64_t halo_row;   ///< first row in the wanting rank's halo tensor
  int64_t rows;
};

/// What `rank` needs from others.
std::vector<Transfer> incoming(const HaloPlan& plan, int64_t rank) {
  std::vector<Transfer> transfers;
  int64_t halo_row = 0;
  for (const auto& segment : plan.segments[static_cast<size_t>(rank)]) {
    if (segment.owner == rank) continue;
    const int64_t owner_row = segment.begin - offset_of(plan.owned, segment.owner);
    transfers.push_back({segment.owner, owner_row, halo_row, segment.size()});
    halo_row += segment.size();
  }
  return transfers;
}

/// What others need from `rank`, per wanting rank in the order in which that rank lists it.
std::vector<Transfer> outgoing(const HaloPlan& plan, int64_t rank) {
  std::vector<Transfer> transfers;
  for (size_t peer = 0; peer < plan.segments.size(); ++peer) {
    if (static_cast<int64_t>(peer) == rank) continue;
    for (auto transfer : incoming(plan, static_cast<int64_t>(peer))) {
      if (transfer.peer != rank) continue;
      transfer.peer = static_cast<int64_t>(peer);
      transfers.push_back(transfer);
    }
  }
  return transfers;
}

Tensor empty_rows(const Tensor& like, int64_t dim, int64_t rows) {
  Shape shape(like.sizes().begin(), like.sizes().end());
  shape[static_cast<size_t>(dim)] = rows;
  return empty_of_shape(like, shape);
}

Tensor fetch(const Tensor& local, const HaloPlan& plan, const DeviceMesh& mesh) {
  const int64_t rank = mesh.rank();
  const Tensor halo = empty_rows(local, plan.dim, plan.halo_rows(rank));
  std::vector<Message> sends;
  std::vector<Message> receives;
  for (const auto& t : outgoing(plan, rank)) {
    sends.push_back({static_cast<int>(t.peer), local.narrow(plan.dim, t.owner_row, t.rows)});
  }
  for (const auto& t : incoming(plan, rank)) {
    receives.push_back({static_cast<int>(t.peer), halo.narrow(plan.dim, t.halo_row, t.rows)});
  }
  mesh.comm().exchange(sends, receives);
  return halo;
}

/// Adds the halo gradients that other ranks send to the rows of `own` they came from, in rank
/// order.
void return_rows(Tensor& own, const Tensor& halo, const HaloPlan& plan, const DeviceMesh& mesh) {
  const int64_t rank = mesh.rank();
  const auto returned = outgoing(plan, rank);
  std::vector<Message> sends;
  std::vector<Message> receives;
  for (const auto& t : incoming(plan, rank)) {
    sends.push_back({static_cast<int>(t.peer), halo.narrow(plan.dim, t.halo_row, t.rows)});
  }
  for (const auto& t : returned) {
    receives.push_back({static_cast<int>(t.peer), empty_rows(own, plan.dim, t.rows)});
  }
  mesh.comm().exchange(sends, receives);
  for (size_t i = 0; i < returned.size(); ++i) {
    own.narrow(plan.dim, returned[i].owner_row, returned[i].rows).add_(receives[i].tensor);
  }
}

Halo exchange_halo(const Tensor& local, const PlanRef& plan, const DeviceMesh& mesh);
Tensor adjoint(Tensor own, const Tensor& halo, const PlanRef& plan, const DeviceMesh& mesh);

struct HaloNode : Node {
  PlanRef plan;
  DeviceMesh mesh;
  Tensor like;  // without rows
  int64_t own_rows = 0;

  Tensor or_zeros(Tensor gradient, int64_t rows) const {
    return gradient.defined() ? alike(gradient, like) : fill_rows(like, plan->dim, rows);
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

struct ExchangeBackward final : HaloNode {
  variable_list apply(variable_list&& gradients) override {
    // Always both: the exchange is collective, whether this rank's gradients are zero or not.
    Tensor own = or_zeros(std::move(gradients[0]), own_rows);
    const Tensor halo = or_zeros(std::move(gradients[1]), plan->halo_rows(mesh.rank()));
    return {adjoint(std::move(own), halo, plan, mesh)};
  }
};

struct AdjointBackward final : HaloNode {
  variable_list apply(variable_list&& gradients) override {
    auto halo = exchange_halo(or_zeros(std::move(gradients[0]), own_rows), plan, mesh);
    return {halo.own, halo.rows};
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
  node->like = empty_rows(local, plan->dim, 0);
  node->own_rows = local.size(plan->dim);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  return node;
}

Halo exchange_halo(const Tensor& local, const PlanRef& plan, const DeviceMesh& mesh) {
  Tensor rows;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    rows = fetch(local, *plan, mesh);
  }
  if (!needs_graph(local)) return {local, rows};
  auto node = make_node<ExchangeBackward>(plan, mesh, local, {local});
  Tensor own = local_alias(local);
  torch::autograd::set_history(own, node);
  torch::autograd::set_history(rows, node);
  return {own, rows};
}

/// A gradient that nobody else holds may be overwritten.
bool is_exclusive(const Tensor& gradient) {
  return gradient.use_count() == 1 && gradient.has_storage() &&
         gradient.storage().use_count() == 1 && gradient.is_non_overlapping_and_dense();
}

// `own` by value: only so can it be seen that nobody else holds it.
Tensor adjoint(Tensor own, const Tensor& halo,  // NOLINT(performance-unnecessary-value-param)
               const PlanRef& plan, const DeviceMesh& mesh) {
  const bool graph = needs_graph(own) || needs_graph(halo);
  Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    result = !graph && is_exclusive(own) ? own : own.clone();
    return_rows(result, halo, *plan, mesh);
  }
  if (graph) {
    auto node = make_node<AdjointBackward>(plan, mesh, result, {own, halo});
    torch::autograd::set_history(result, node);
  }
  return result;
}

struct AddStrips : torch::autograd::Function<AddStrips> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor y, const Tensor& low,
                        const Tensor& high, int64_t dim) {
    const int64_t low_rows = low.numel() ? low.size(dim) : 0;
    const int64_t high_rows = high.numel() ? high.size(dim) : 0;
    if (low_rows) y.narrow(dim, 0, low_rows).add_(low);
    if (high_rows) y.narrow(dim, y.size(dim) - high_rows, high_rows).add_(high);
    context->mark_dirty({y});
    context->saved_data["dim"] = dim;
    context->saved_data["low"] = low_rows;
    context->saved_data["high"] = high_rows;
    return y;
  }
  static variable_list backward(torch::autograd::AutogradContext* context,
                                const variable_list& gradients) {
    const auto& g = gradients[0];
    const int64_t dim = context->saved_data["dim"].toInt();
    const int64_t low = context->saved_data["low"].toInt();
    const int64_t high = context->saved_data["high"].toInt();
    return {g, low ? g.narrow(dim, 0, low) : Tensor(),
            high ? g.narrow(dim, g.size(dim) - high, high) : Tensor(), Tensor()};
  }
};

}  // namespace

Halo exchange_halo(const Tensor& local, const HaloPlan& plan, const DeviceMesh& mesh) {
  if (!plan.communicates()) return {local, local.narrow(plan.dim, 0, 0)};
  return exchange_halo(local, std::make_shared<const HaloPlan>(plan), mesh);
}

Tensor fill_rows(const Tensor& like, int64_t dim, int64_t rows, const at::Scalar& fill) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return empty_rows(like, dim, rows).fill_(fill);
}

std::vector<Tensor> wanted_pieces(const Halo& halo, const HaloPlan& plan, int64_t rank) {
  const int64_t offset = offset_of(plan.owned, rank);
  std::vector<Tensor> pieces;
  int64_t halo_row = 0;
  for (const auto& segment : plan.segments[static_cast<size_t>(rank)]) {
    if (segment.owner == rank) {
      const bool is_whole = segment.size() == halo.own.size(plan.dim);
      pieces.push_back(
          is_whole ? halo.own : halo.own.narrow(plan.dim, segment.begin - offset, segment.size()));
    } else {
      pieces.push_back(halo.rows.narrow(plan.dim, halo_row, segment.size()));
      halo_row += segment.size();
    }
  }
  return pieces;
}

Tensor join(const std::vector<Tensor>& pieces, int64_t dim) {
  return pieces.size() == 1 ? pieces[0] : at::cat(pieces, dim);
}

Tensor assemble(const Halo& halo, const HaloPlan& plan, int64_t rank, int64_t before, int64_t after,
                const at::Scalar& fill) {
  auto pieces = wanted_pieces(halo, plan, rank);
  // Rows of the exchange always take part, so that every rank's graph contains it. (Not otherwise:
  // an empty piece would cost a channels-last result its memory format.)
  if (pieces.empty()) pieces.push_back(halo.own.narrow(plan.dim, 0, 0));
  if (before) pieces.insert(pieces.begin(), fill_rows(halo.own, plan.dim, before, fill));
  if (after) pieces.push_back(fill_rows(halo.own, plan.dim, after, fill));
  return join(pieces, plan.dim);
}

Tensor add_strips(Tensor y, const Tensor& low, const Tensor& high, int64_t dim) {
  if (!low.defined() && !high.defined()) return y;
  // autograd::Function takes no undefined inputs.
  const auto or_nothing = [&](const Tensor& strip) {
    return strip.defined() ? strip : at::empty({0}, y.options());
  };
  return AddStrips::apply(y, or_nothing(low), or_nothing(high), dim);
}

}  // namespace shard
