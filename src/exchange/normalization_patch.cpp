// SPDX-License-Identifier: Apache-2.0
// NOTE [Normalization over ranks]
// Forward: every rank's (mean, sum of squared deviations) per group are gathered and merged (Chan),
// then one pass scales and shifts. Saved: the input and two numbers a group. Backward: one pass
// sums g and g * (x - mean) per channel; the group sums of all ranks and the gradients of weight
// and bias travel in one message; one pass combines. When a graph of the backward is wanted, the
// same formula is made of differentiable ops instead.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <shard/normalization_patch.h>
#include <shard/reduction_patch.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <numeric>

#include "exchange/row_kernels.h"

namespace shard {
namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// Per group of the local samples, in double: (batch, groups, 1).
struct Statistics {
  Tensor mean;
  Tensor inverse_deviation;
};

Statistics statistics_over_ranks(const Tensor& x, const GroupShape& shape, double eps,
                                 const DeviceMesh& mesh) {
  const auto [mean, squares] =
      row_moments(x.view({shape.batch * shape.groups, shape.group_elements()}));
  const Tensor all = gathered_over_ranks(at::stack({mean, squares}), mesh);  // (ranks, 2, rows)
  const Tensor counts = at::tensor(shape.counts, at::kDouble).to(x.device()).unsqueeze(1);
  const Tensor means = all.select(1, 0);
  const auto total = static_cast<double>(shape.total());
  const Tensor common = (means * counts).sum(0).div_(total);
  const Tensor sum = all.select(1, 1).sum(0).add_(((means - common).square_() * counts).sum(0));
  return {common.view({shape.batch, shape.groups, 1}),
          sum.div_(total).add_(eps).rsqrt_().view({shape.batch, shape.groups, 1})};
}

/// Something that broadcasts with (batch, groups, channels per group) -> one entry a row of
/// (batch * channels, inner). Not reshape: of a broadcast tensor it may be a view with stride zero.
Tensor per_channel(const Tensor& grouped, const GroupShape& shape) {
  return grouped.expand({shape.batch, shape.groups, shape.channels / shape.groups})
      .contiguous()
      .view(-1);
}

/// weight or bias in double, to broadcast with (batch, groups, channels per group); undefined:
/// `fallback`.
Tensor in_groups(const Tensor& parameter, const GroupShape& shape) {
  return parameter.to(at::kDouble).view({1, shape.groups, -1});
}

Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const GroupShape& shape,
               const Statistics& statistics) {
  const int64_t rows = shape.batch * shape.channels;
  Tensor scale = statistics.inverse_deviation;
  if (weight.defined()) scale = scale * in_groups(weight, shape);
  const Tensor shift =
      bias.defined() ? in_groups(bias, shape) : at::zeros({1, 1, 1}, scale.options());
  return row_affine(x.view({rows, shape.inner}), per_channel(statistics.mean, shape),
                    per_channel(scale, shape), per_channel(shift, shape))
      .view(x.sizes());
}

/// One double message of several tensors; returns their sums over the ranks.
std::vector<Tensor> sums_over_ranks(const std::vector<Tensor>& parts, const DeviceMesh& mesh) {
  std::vector<Tensor> flat;
  for (const auto& part : parts) flat.push_back(part.reshape(-1));
  Tensor message = at::cat(flat);
  mesh.comm().all_reduce(message);
  std::vector<Tensor> sums;
  int64_t begin = 0;
  for (const auto& part : parts) {
    sums.push_back(message.narrow(0, begin, part.numel()).view(part.sizes()));
    begin += part.numel();
  }
  return sums;
}

struct Gradients {
  Tensor x, weight, bias;
};

Gradients gradients_at_once(const Tensor& g, const Tensor& x, const Tensor& weight,
                            const GroupShape& shape, const Statistics& statistics,
                            const DeviceMesh& mesh, bool wants_x) {
  const int64_t rows = shape.batch * shape.channels;
  const Tensor g_rows = g.contiguous().view({rows, shape.inner});
  const Tensor x_rows = x.view({rows, shape.inner});
  const Tensor mean = per_channel(statistics.mean, shape);
  const auto [sum, product] = row_products(g_rows, x_rows, mean);
  const std::vector<int64_t> grouped{shape.batch, shape.groups, shape.channels / shape.groups};
  const Tensor& inverse = statistics.inverse_deviation;
  const Tensor of_bias = sum.view(grouped);
  const Tensor of_weight = product.view(grouped) * inverse;
  const Tensor w = weight.defined() ? in_groups(weight, shape) : at::ones({1, 1, 1}, sum.options());
  const auto sums = sums_over_ranks(
      {(of_bias * w).sum(2, true), (of_weight * w).sum(2, true), of_weight.sum(0), of_bias.sum(0)},
      mesh);
  const auto count = static_cast<double>(shape.total());
  if (!wants_x) return {Tensor(), sums[2].reshape(-1), sums[3].reshape(-1)};
  const Tensor b = inverse.square() * sums[1] / -count;
  const Tensor c = inverse * sums[0] / -count;
  const Tensor dx = row_combination(g_rows, x_rows, mean, per_channel(inverse * w, shape),
                                    per_channel(b, shape), per_channel(c, shape));
  return {dx.view(x.sizes()), sums[2].reshape(-1), sums[3].reshape(-1)};
}

// ---- the same of differentiable ops

Gradients differentiable_gradients(const Tensor& g, const Tensor& x, const Tensor& weight,
                                   const GroupShape& shape, double eps, const DeviceMesh& mesh) {
  const std::vector<int64_t> grouped{shape.batch, shape.groups, shape.channels / shape.groups,
                                     shape.inner};
  const auto count = static_cast<double>(shape.total());
  const std::vector<int64_t> outer{0, 3};
  const std::vector<int64_t> within{2, 3};
  const auto group_mean = [&](const Tensor& t) {
    return all_reduce(t.sum(within, true), mesh) / count;
  };
  const Tensor centred = x.view(grouped) - group_mean(x.view(grouped));
  const Tensor inverse = (group_mean(centred.square()) + eps).rsqrt();
  const Tensor normalized = centred * inverse;
  const Tensor g_grouped = g.reshape(grouped);
  Tensor weighted = g_grouped;
  if (weight.defined()) {
    weighted = g_grouped * local_weight(mesh, weight).view({1, shape.groups, -1, 1});
  }
  const Tensor dx =
      inverse * (weighted - group_mean(weighted) - normalized * group_mean(weighted * normalized));
  return {dx.view(x.sizes()), common_sum((g_grouped * normalized).sum(outer).reshape(-1), mesh),
          common_sum(g_grouped.sum(outer).reshape(-1), mesh)};
}

struct NormalizeGroupsBackward final : Node {
  SavedVariable x, weight;
  Statistics statistics;
  GroupShape shape;
  at::ScalarType weight_dtype = at::kFloat;
  at::ScalarType bias_dtype = at::kFloat;
  double eps = 0;
  DeviceMesh mesh;

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard lock(mutex_);
    if (!gradients[0].defined()) return {Tensor(), Tensor(), Tensor()};
    const Tensor input = x.unpack();
    const Tensor scale = weight.unpack();
    auto result = at::GradMode::is_enabled()
                      ? differentiable_gradients(gradients[0], input, scale, shape, eps, mesh)
                      : gradients_at_once(gradients[0], input, scale, shape, statistics, mesh,
                                          task_should_compute_output(0));
    return {result.x, wanted(1, result.weight, weight_dtype), wanted(2, result.bias, bias_dtype)};
  }

  /// Own storage: an accumulated gradient must not be a part of the message.
  Tensor wanted(size_t output, const Tensor& gradient, at::ScalarType dtype) const {
    return task_should_compute_output(output)
               ? gradient.to(dtype, /*non_blocking=*/false, /*copy=*/true)
               : Tensor();
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    x.reset_data();
    weight.reset_data();
  }
};

bool needs_graph(const Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

}  // namespace

int64_t GroupShape::total() const {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Tensor whole(const Tensor& parameter) {
  return parameter.defined() && is_shard_tensor(parameter) ? ShardTensor(parameter).full()
                                                           : parameter;
}

Tensor normalize_groups(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const GroupShape& shape, double eps, const DeviceMesh& mesh,
                        GroupStatistics* used) {
  Statistics statistics;
  Tensor y;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    statistics = statistics_over_ranks(x, shape, eps, mesh);
    y = forward(x, weight, bias, shape, statistics);
    if (used) {
      *used = {statistics.mean.squeeze(2),
               statistics.inverse_deviation.pow(-2).sub_(eps).clamp_min_(0).squeeze(2)};
    }
  }
  if (!at::GradMode::is_enabled() || !(needs_graph(x) || needs_graph(weight) || needs_graph(bias)))
    return y;
  auto node = std::shared_ptr<NormalizeGroupsBackward>(new NormalizeGroupsBackward(),
                                                       torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(x, weight, bias));
  node->x = SavedVariable(x, false);
  node->weight = SavedVariable(weight, false);
  node->statistics = std::move(statistics);
  node->shape = shape;
  if (weight.defined()) node->weight_dtype = weight.scalar_type();
  if (bias.defined()) node->bias_dtype = bias.scalar_type();
  node->eps = eps;
  node->mesh = mesh;
  torch::autograd::set_history(y, node);
  return y;
}

}  // namespace shard
