// SPDX-License-Identifier: Apache-2.0
// Variance and standard deviation. Over a sharded dim: the ranks agree on the mean first, then on
// the sum of squared deviations from it (three small messages). Never E[x^2] - E[x]^2, which
// cancels.
#include <ATen/ops/mean.h>
#include <ATen/ops/squeeze.h>
#include <ATen/ops/std.h>
#include <ATen/ops/var.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <shard/reduction_patch.h>

namespace shard {
namespace {

using at::Tensor;

/// Mean and sum of squared deviations of a local tensor; zeros for an empty one, which lie as those
/// of the others do: on an inner level the mean may be pending.
std::pair<Tensor, Tensor> local_moments(const Tensor& x, const ReducedDims& reduced) {
  const auto count = static_cast<double>(reduced.local_count(x));
  if (count == 0) {
    return {x.sum(reduced.dims, reduced.keepdim),
            result_of_nothing(x, reduced, 0, c10::toRealValueType(x.scalar_type()))};
  }
  const auto [variance, mean] = at::var_mean(x, reduced.dims, /*correction=*/0, reduced.keepdim);
  return {mean, variance * count};
}

/// The moments are taken of what is left when a rounded common mean is subtracted: of a mean of 1e4
/// and a deviation of 1 float32 would otherwise keep four digits.
Tensor variance_across(const Tensor& local, const ReducedDims& asked, double correction,
                       const DeviceMesh& mesh) {
  ReducedDims reduced = asked;
  reduced.keepdim = true;
  const auto dtype = local.scalar_type();
  const bool is_low = dtype == at::kHalf || dtype == at::kBFloat16;
  const Tensor x = is_low ? local.to(at::kFloat) : local;
  const auto count = static_cast<double>(reduced.local_count(x));
  const auto total = static_cast<double>(reduced.count);
  const Tensor own_mean = local_moments(x, reduced).first;
  const Tensor pivot = reduced_over_ranks(own_mean * (count / total), mesh, ReduceOp::Sum);
  const auto [mean, squares] = local_moments(x - pivot, reduced);
  const Tensor sum = reduced_over_ranks(squares + mean.abs().square() * count, mesh, ReduceOp::Sum);
  const Tensor rest = reduced_over_ranks(mean * (count / total), mesh, ReduceOp::Sum);
  const Tensor variance =
      (sum - rest.abs().square() * total).div_(std::max(total - correction, 0.0));
  const Tensor result = variance.to(c10::toRealValueType(dtype));
  return asked.keepdim ? result : result.squeeze(reduced.dims);
}

Rule spread(bool is_std) {  // var.correction(self, dim, *, correction, keepdim), std.correction
  return [is_std](const OpCall& call) -> std::optional<Decision> {
    const auto reduced = reduced_dims(call, 1, call.argument(3).toBool());
    const double correction =
        call.argument(2).isNone() ? 1 : call.argument(2).toScalar().toDouble();
    return reduction_rule(call, reduced, [=, mesh = call.mesh()](const Tensor& local) {
      const Tensor variance = variance_across(local, reduced, correction, mesh);
      return std::vector<Tensor>{is_std ? variance.sqrt() : variance};
    });
  };
}

// Two ops, because LibTorch's formula for both at once expands the mean's gradient to the global
// size.
std::tuple<Tensor, Tensor> var_mean(const Tensor& x, at::OptionalIntArrayRef dims,
                                    const std::optional<at::Scalar>& correction, bool keepdim) {
  return {at::var(x, dims, correction, keepdim), at::mean(x, dims, keepdim)};
}
std::tuple<Tensor, Tensor> std_mean(const Tensor& x, at::OptionalIntArrayRef dims,
                                    const std::optional<at::Scalar>& correction, bool keepdim) {
  return {at::std(x, dims, correction, keepdim), at::mean(x, dims, keepdim)};
}

}  // namespace

SHARD_PATCH(statistics) {
  patch.rule("aten::var.correction", spread(false)).shards("any dim").needs_values();
  patch.rule("aten::std.correction", spread(true)).shards("any dim").needs_values();
  patch.function<at::_ops::var_mean_correction>(var_mean).shards("any dim");
  patch.function<at::_ops::std_mean_correction>(std_mean).shards("any dim");
}

}  // namespace shard
