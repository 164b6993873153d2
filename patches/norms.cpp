// SPDX-License-Identifier: Apache-2.0
// Vector norms of any order. Over a sharded dim the norm of the whole is the norm of the ranks'
// norms.
#include <ATen/ops/_weight_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/norm_except_dim.h>
#include <shard/reduction_patch.h>

#include <cmath>
#include <limits>

namespace shard {
namespace {

using at::Tensor;
using Dtype = std::optional<at::ScalarType>;

Tensor local_norm(const Tensor& x, double order, const ReducedDims& reduced, Dtype dtype) {
  if (reduced.local_count(x) > 0) {
    return at::linalg_vector_norm(x, order, reduced.dims, reduced.keepdim, dtype);
  }
  // Of nothing: 0; for negative orders, in which the smallest element rules, inf.
  const double value = order < 0 ? std::numeric_limits<double>::infinity() : 0;
  return result_of_nothing(x, reduced, value,
                           c10::toRealValueType(dtype.value_or(x.scalar_type())));
}

Tensor norm_across(const Tensor& x, double order, const ReducedDims& reduced, Dtype dtype,
                   const DeviceMesh& mesh) {
  const Tensor mine = local_norm(x, order, reduced, dtype);
  if (order == 0) return reduced_over_ranks(mine, mesh, ReduceOp::Sum);  // the number of non-zeros
  if (std::isinf(order))
    return reduced_over_ranks(mine, mesh, order > 0 ? ReduceOp::Max : ReduceOp::Min);
  return at::linalg_vector_norm(gathered_over_ranks(mine, mesh), order, c10::IntArrayRef{0}, false);
}

// linalg_vector_norm(self, ord, dim, keepdim, *, dtype)
std::optional<Decision> vector_norm(const OpCall& call) {
  const double order = call.argument(1).toScalar().toDouble();
  const auto reduced = reduced_dims(call, 2, call.argument(3).toBool());
  const Dtype dtype = call.argument(4).toOptional<at::ScalarType>();
  return reduction_rule(call, reduced, [=, mesh = call.mesh()](const Tensor& local) {
    return std::vector<Tensor>{norm_across(local, order, reduced, dtype, mesh)};
  });
}

// ---- the older spellings

Tensor norm(const Tensor& x, const at::Scalar& p) { return at::linalg_vector_norm(x, p); }

Tensor norm_dtype(const Tensor& x, const std::optional<at::Scalar>& p, at::ScalarType dtype) {
  return at::linalg_vector_norm(x, p.value_or(2), std::nullopt, false, dtype);
}

Tensor norm_dims(const Tensor& x, const std::optional<at::Scalar>& p, c10::IntArrayRef dims,
                 bool keepdim) {
  return at::linalg_vector_norm(x, p.value_or(2), dims, keepdim);
}

Tensor norm_dims_dtype(const Tensor& x, const std::optional<at::Scalar>& p, c10::IntArrayRef dims,
                       bool keepdim, at::ScalarType dtype) {
  return at::linalg_vector_norm(x, p.value_or(2), dims, keepdim, dtype);
}

// ---- weights by direction and length

/// As LibTorch composes it where it has no fused kernel.
Tensor weight_norm(const Tensor& direction, const Tensor& length, int64_t dim) {
  return direction * (length / at::norm_except_dim(direction, 2, dim));
}

}  // namespace

SHARD_PATCH(norms) {
  patch.rule("aten::linalg_vector_norm", vector_norm).shards("any dim").needs_values();
  patch.function<at::_ops::norm_Scalar>(norm).shards("any dim");
  patch.function<at::_ops::norm_ScalarOpt_dtype>(norm_dtype).shards("any dim");
  patch.function<at::_ops::norm_ScalarOpt_dim>(norm_dims).shards("any dim");
  patch.function<at::_ops::norm_ScalarOpt_dim_dtype>(norm_dims_dtype).shards("any dim");
  patch.function<at::_ops::_weight_norm>(weight_norm).shards("any dim");
}

}  // namespace shard
