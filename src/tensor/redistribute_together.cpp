// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/LegacyTypeDispatch.h>
#include <shard/memory_order.h>
#include <shard/pieces.h>
#include <shard/primitives.h>
#include <shard/redistribute_together.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "tensor/impl.h"
#include "tensor/leaf_hook.h"

namespace shard {
namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Tensors = std::vector<Tensor>;

/// redistribute() refuses these.
bool has_tangent(const Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta && meta->fw_grad_;
}

/// From one cut dim to another, of a plain local part.
bool is_transposition(const Tensor& tensor, const SpecRef& target) {
  const auto& spec = spec_of(tensor);
  return !has_tangent(tensor) && spec->is_shard() && target->is_shard() &&
         spec->shard_dim() != target->shard_dim() && !is_shard_tensor(raw_local(tensor));
}

/// As messages, one for every rank that has something of it.
void add_messages(std::vector<Message>& messages, const std::vector<Tensor>& pieces) {
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    if (pieces[rank].numel() > 0) messages.push_back({static_cast<int>(rank), pieces[rank]});
  }
}

/// New local parts: every rank sends of each tensor the columns of all ranks and gets their rows.
Tensors transposed(const Tensors& tensors, const std::vector<SpecRef>& targets) {
  const DeviceMesh& mesh = mesh_of(tensors[0]);
  Tensors results;
  std::vector<Message> sends;
  std::vector<Message> receives;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& local = raw_local(tensors[i]);
    results.push_back(empty_of_shape(local, targets[i]->local_shape(mesh.rank())));
    const auto& from = *spec_of(tensors[i]);
    const auto& to = *targets[i];
    add_messages(sends, pieces_of(local, to.shard_dim(), to.partition()));
    add_messages(receives, pieces_of(results.back(), from.shard_dim(), from.partition()));
  }
  mesh.comm().exchange(sends, receives);
  for (size_t i = 0; i < results.size(); ++i) results[i] = in_common_order(results[i], *targets[i]);
  return results;
}

struct RedistributeTogetherBackward final : Node {
  DeviceMesh mesh;
  std::vector<SpecRef> specs;

  variable_list apply(variable_list&& gradients) override {
    Tensors given;
    std::vector<SpecRef> targets;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!is_wanted(gradients, i)) continue;
      given.push_back(promote(gradients[i], mesh));
      targets.push_back(specs[i]);
    }
    const Tensors moved = redistribute_together(given, targets);
    variable_list results(gradients.size());
    size_t next = 0;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (is_wanted(gradients, i)) results[i] = moved[next++];
    }
    return results;
  }

 private:
  bool is_wanted(const variable_list& gradients, size_t i) const {
    return gradients[i].defined() && task_should_compute_output(i);
  }
};

/// One node over those that need a gradient.
void set_history(const Tensors& inputs, const Tensors& results) {
  Tensors watched;
  std::vector<size_t> places;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!at::GradMode::is_enabled() || !inputs[i].requires_grad()) continue;
    ensure_leaf_hook(inputs[i]);
    watched.push_back(inputs[i]);
    places.push_back(i);
  }
  if (watched.empty()) return;
  auto node = std::shared_ptr<RedistributeTogetherBackward>(new RedistributeTogetherBackward(),
                                                            torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(watched));
  node->mesh = mesh_of(watched[0]);
  for (const size_t i : places) {
    node->specs.push_back(spec_of(inputs[i]));
    torch::autograd::set_history(results[i], node);
  }
}

}  // namespace

Tensors redistribute_together(const Tensors& tensors, const std::vector<SpecRef>& targets) {
  Tensors results(tensors.size());
  Tensors moving;
  std::vector<SpecRef> to;
  std::vector<size_t> places;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!is_transposition(tensors[i], targets[i])) {
      results[i] = redistribute(tensors[i], targets[i]);
      continue;
    }
    moving.push_back(tensors[i]);
    to.push_back(targets[i]);
    places.push_back(i);
  }
  if (moving.size() < 2) {
    for (size_t i = 0; i < moving.size(); ++i) results[places[i]] = redistribute(moving[i], to[i]);
    return results;
  }
  Tensors moved;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    moved = transposed(moving, to);
    for (size_t i = 0; i < moved.size(); ++i) {
      moved[i] = wrap(moved[i], mesh_of(moving[i]), to[i]);
    }
  }
  set_history(moving, moved);
  for (size_t i = 0; i < moved.size(); ++i) results[places[i]] = moved[i];
  return results;
}

}  // namespace shard
