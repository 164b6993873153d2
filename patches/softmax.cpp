// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax. Along a sharded dim the ranks agree on the maximum and the sum of
// exponentials of every row (two small messages), and in the backward on one sum more. The second
// derivative is LibTorch's.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <shard/reduction_patch.h>

namespace shard {
namespace {

using at::Tensor;

/// x minus the global maximum of its row; an empty shard takes part with -inf.
Tensor minus_row_maximum(const Tensor& x, int64_t dim, const DeviceMesh& mesh) {
  const ReducedDims reduced{.dims = {dim}, .keepdim = true};
  const auto lowest = extremum_of_nothing(x.scalar_type(), true);
  const Tensor mine = x.size(dim) == 0 ? result_of_nothing(x, reduced, lowest, x.scalar_type())
                                       : at::amax(x, dim, true);
  return x - reduced_over_ranks(mine, mesh, ReduceOp::Max);
}

Tensor row_sum(const Tensor& x, int64_t dim, const DeviceMesh& mesh) {
  return reduced_over_ranks(x.sum(dim, true), mesh, ReduceOp::Sum);
}

/// As LibTorch's kernels compute 16-bit numbers.
Tensor in_float(const Tensor& x) {
  return at::isReducedFloatingType(x.scalar_type()) ? x.to(at::kFloat) : x;
}

Tensor softmax_across(const Tensor& x, int64_t dim, bool is_log, const DeviceMesh& mesh) {
  Tensor y = minus_row_maximum(x, dim, mesh);
  if (is_log) return y.sub_(row_sum(y.exp(), dim, mesh).log_());
  y.exp_();
  return y.div_(row_sum(y, dim, mesh));
}

Tensor gradient_across(const Tensor& gradient, const Tensor& y, int64_t dim, bool is_log,
                       const DeviceMesh& mesh) {
  if (is_log) return gradient - y.exp().mul_(row_sum(gradient, dim, mesh));
  const Tensor weighted = gradient * y;
  return weighted - y * row_sum(weighted, dim, mesh);
}

/// All tensors lie like the first one that is sharded; `across` runs when that is along the softmax
/// dim.
Decision aligned(const OpCall& call, int64_t dim,
                 std::function<Tensor(c10::ArrayRef<c10::IValue>)> across) {
  Layout layout;
  for (const auto& argument : call.tensors()) {
    if (argument.is_shard() && !layout.is_shard()) layout = argument.layout();
  }
  Decision decision;
  decision.inputs.assign(call.tensors().size(), layout);
  decision.outputs.push_back(layout);
  if (layout.is_shard() && layout.dim() == dim && call.mesh().size() > 1) {
    decision.local = [across = std::move(across)](c10::ArrayRef<c10::IValue> arguments) {
      return std::vector<c10::IValue>{across(arguments)};
    };
  }
  return decision;
}

Rule softmax(bool is_log) {  // _softmax(self, dim, half_to_float)
  return [is_log](const OpCall& call) -> std::optional<Decision> {
    const int64_t dim = call.dim(1, call.tensor(0).ndim());
    return aligned(call, dim, [=, mesh = call.mesh()](c10::ArrayRef<c10::IValue> arguments) {
      const Tensor x = arguments[0].toTensor();
      const Tensor y = softmax_across(in_float(x), dim, is_log, mesh);
      return arguments[2].toBool() ? y : y.to(x.scalar_type());
    });
  };
}

Rule softmax_backward(
    bool is_log) {  // _softmax_backward_data(grad_output, output, dim, input_dtype)
  return [is_log](const OpCall& call) -> std::optional<Decision> {
    const int64_t dim = call.dim(2, call.tensor(0).ndim());
    return aligned(call, dim, [=, mesh = call.mesh()](c10::ArrayRef<c10::IValue> arguments) {
      return gradient_across(in_float(arguments[0].toTensor()), in_float(arguments[1].toTensor()),
                             dim, is_log, mesh)
          .to(arguments[3].toScalarType());
    });
  };
}

}  // namespace

SHARD_PATCH(softmax) {
  patch.rule("aten::_softmax", softmax(false)).shards("any dim").needs_values();
  patch.rule("aten::_log_softmax", softmax(true)).shards("any dim").needs_values();
  patch.rule("aten::_softmax_backward_data", softmax_backward(false))
      .shards("any dim")
      .needs_values();
  patch.rule("aten::_log_softmax_backward_data", softmax_backward(true))
      .shards("any dim")
      .needs_values();
}

}  // namespace shard
