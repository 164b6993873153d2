// SPDX-License-Identifier: Apache-2.0
// Plain tensors that meet ShardTensors: weights, buffers, constants. They count as Replicate; the
// one place where their gradients are summed over the domain is reduce_gradients.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <shard/log.h>
#include <shard/primitives.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <atomic>
#include <optional>

#include "tensor/impl.h"
#include "tensor/leaf_hook.h"
#include "tensor/replicated_check.h"

namespace shard {
namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::variable_list;

std::atomic<TensorPromotionMode> promotion_mode{TensorPromotionMode::Silent};
std::atomic<bool> has_warned{false};

void note_promotion(const Tensor& tensor, const DeviceMesh& mesh) {
  check_replicated(tensor, mesh);
  const auto mode = promotion_mode.load(std::memory_order_relaxed);
  if (mode == TensorPromotionMode::Silent || tensor.dim() == 0) return;
  check<SpecMismatch>(
      mode == TensorPromotionMode::Warn, "promote", "got a plain tensor of ", tensor.sizes(),
      " next to a ShardTensor while promotion is disabled; expected "
      "ShardTensors only. Use shard::from_local, or set_tensor_promotion_mode(Silent).");
  if (!has_warned.exchange(true)) {
    log(LogLevel::Warning, "[promote] a plain tensor of ", tensor.sizes(),
        " met a ShardTensor and counts as Replicate (this warning is given once).");
  }
}

/// The sum over ranks of a fresh tensor.
Tensor sum_of(const Tensor& contributions, const DeviceMesh& mesh) {
  if (at::GradMode::is_enabled()) return common_sum(contributions, mesh);
  Tensor sum = contributions;
  mesh.comm().all_reduce(sum);  // where it lies
  return sum;
}

/// All gradients in one flat message, differentiable when a graph is being made.
std::vector<Tensor> sum_packed(const std::vector<Tensor>& partials, const DeviceMesh& mesh) {
  if (partials.size() == 1) return {sum_of(partials[0].clone(), mesh)};
  std::vector<Tensor> flat;
  flat.reserve(partials.size());
  for (const auto& partial : partials) flat.push_back(partial.reshape(-1));
  const Tensor sum = sum_of(at::cat(flat), mesh);
  std::vector<Tensor> result;
  int64_t begin = 0;
  for (const auto& partial : partials) {
    // Own storage: accumulated gradients must not be views that share a version counter.
    result.push_back(sum.narrow(0, begin, partial.numel()).clone().view(partial.sizes()));
    begin += partial.numel();
  }
  return result;
}

/// NOTE [reduce_gradients]
/// The seam through which every gradient of a plain tensor passes: per-rank contributions in (all
/// defined, the same number in the same order on every rank), their sum over the domain out. (Of a
/// weight that is cut over inner mesh dims they are ShardTensors: those stay apart from plain
/// ones.) Data-parallel reduction over another mesh dim belongs here too, so that both travel
/// together.
std::vector<Tensor> reduce_gradients(const std::vector<Tensor>& partials, const DeviceMesh& mesh) {
  std::vector<Tensor> result(partials.size());
  std::vector<bool> done(partials.size(), false);
  for (size_t i = 0; i < partials.size(); ++i) {  // one message per dtype; mixed ones are rare
    if (done[i]) continue;
    std::vector<size_t> group;
    std::vector<Tensor> members;
    for (size_t j = i; j < partials.size(); ++j) {
      const bool are_alike = partials[j].scalar_type() == partials[i].scalar_type() &&
                             is_shard_tensor(partials[j]) == is_shard_tensor(partials[i]);
      if (done[j] || !are_alike) continue;
      group.push_back(j);
      members.push_back(partials[j]);
      done[j] = true;
    }
    const auto sums = sum_packed(members, mesh);
    for (size_t k = 0; k < group.size(); ++k) result[group[k]] = sums[k];
  }
  return result;
}

struct LocalWeightsBackward final : Node {
  struct Meta {
    Shape sizes;
    at::TensorOptions options;
    // Of a weight that is a ShardTensor itself, and how its gradient lies on every rank:
    std::optional<DeviceMesh> inner;
    SpecRef spec;

    Tensor contribution(const Tensor& gradient) const {
      if (!inner) return gradient.defined() ? gradient : at::zeros(sizes, options);
      if (gradient.defined()) return redistribute(promote(gradient, *inner), spec);
      return wrap(at::zeros(spec->local_shape(inner->rank()), options), *inner, spec);
    }
  };
  DeviceMesh mesh;
  std::vector<Meta> metas;  // of the inputs that require grad

  variable_list apply(variable_list&& gradients) override {
    std::vector<Tensor> partials;
    std::vector<size_t> at;
    for (size_t i = 0; i < gradients.size(); ++i) {
      // Which gradients are wanted is the same on every rank; whether one is defined need not be.
      if (!task_should_compute_output(i)) continue;
      partials.push_back(metas[i].contribution(gradients[i]));
      at.push_back(i);
    }
    variable_list result(gradients.size());
    const auto sums = reduce_gradients(partials, mesh);
    for (size_t k = 0; k < at.size(); ++k) result[at[k]] = sums[k];
    return result;
  }
};

struct PromoteBackward final : Node {
  DeviceMesh mesh;
  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined() || !impl_of(gradients[0])) return {gradients[0]};
    return {ShardTensor(gradients[0]).full()};  // over all levels
  }
};

bool needs_graph(const Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
}

/// A Replicate ShardTensor is used through its local tensor, other plain ones as they are.
Tensor plain_weight(const Tensor& weight) {
  if (!weight.defined() || !impl_of(weight)) return weight;
  return to_local(redistribute(weight, spec_of(weight)->replicated()));
}

}  // namespace

void set_tensor_promotion_mode(TensorPromotionMode mode) {
  has_warned = false;
  promotion_mode = mode;
}
TensorPromotionMode tensor_promotion_mode() { return promotion_mode; }

Tensor promote(const Tensor& tensor, const DeviceMesh& mesh) {
  if (!tensor.defined() || impl_of(tensor)) return tensor;
  note_promotion(tensor, mesh);
  const auto spec = ShardTensorSpec::make(mesh.layout_ref(), Replicate(), tensor.sizes());
  if (!needs_graph(tensor)) {
    return wrap(tensor.requires_grad() ? local_alias(tensor) : tensor, mesh, spec);
  }
  Tensor result = wrap(local_alias(tensor), mesh, spec);
  auto node = std::shared_ptr<PromoteBackward>(new PromoteBackward(), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(tensor));
  node->mesh = mesh;
  torch::autograd::set_history(result, node);
  return result;
}

std::vector<Tensor> local_weights(const DeviceMesh& mesh, const std::vector<Tensor>& weights) {
  std::vector<Tensor> result;
  variable_list inputs;
  result.reserve(weights.size());
  for (const auto& weight : weights) {
    if (weight.defined() && !impl_of(weight)) note_promotion(weight, mesh);
    result.push_back(plain_weight(weight));
    if (result.back().defined() && needs_graph(result.back())) inputs.push_back(result.back());
  }
  if (inputs.empty() || mesh.size() == 1) return result;
  auto node = std::shared_ptr<LocalWeightsBackward>(new LocalWeightsBackward(),
                                                    torch::autograd::deleteNode);
  node->mesh = mesh;
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (auto& weight : result) {
    if (!weight.defined() || !needs_graph(weight)) continue;
    LocalWeightsBackward::Meta meta{Shape(weight.sizes()), weight.options(), {}, nullptr};
    if (impl_of(weight)) {
      meta.inner = mesh_of(weight);
      meta.spec = dual_spec(spec_of(weight));
    }
    node->metas.push_back(std::move(meta));
    weight = local_alias(weight);
    torch::autograd::set_history(weight, node);
  }
  return result;
}

std::vector<Tensor> local_copies(const DeviceMesh&, const std::vector<Tensor>& weights) {
  std::vector<Tensor> result;
  for (const auto& weight : weights) result.push_back(plain_weight(weight));
  return result;
}

Tensor local_weight(const DeviceMesh& mesh, const Tensor& weight) {
  return local_weights(mesh, {weight})[0];
}

}  // namespace shard
