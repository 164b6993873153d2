// SPDX-License-Identifier: Apache-2.0
// Sums and means. The backward expands to the *local* shape: LibTorch's own formulas would make
// every rank expand the gradient to the global one.
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>
#include <shard/reduction_patch.h>

namespace shard {
namespace {

using at::Tensor;
using Dtype = std::optional<at::ScalarType>;

Tensor sum_dims(const Tensor& x, at::OptionalIntArrayRef dims, bool keepdim, Dtype dtype) {
  const auto input = reduction_input(x, dims, keepdim);
  return from_reduction(at::sum(to_local(input.tensor), input.dims, keepdim, dtype), input,
                        Partial());
}

Tensor sum_all(const Tensor& x, Dtype dtype) { return sum_dims(x, std::nullopt, false, dtype); }

/// The sum of the local elements over the global count: shards count by their size, and empty ones
/// do not make it NaN.
Tensor mean_dims(const Tensor& x, at::OptionalIntArrayRef dims, bool keepdim, Dtype dtype) {
  const auto input = reduction_input(x, dims, keepdim);
  const Tensor local = to_local(input.tensor);
  if (!input.reduces_shard)
    return from_reduction(at::mean(local, input.dims, keepdim, dtype), input, Partial());
  check<SpecMismatch>(at::isFloatingType(dtype.value_or(x.scalar_type())) ||
                          at::isComplexType(dtype.value_or(x.scalar_type())),
                      "aten::mean", "got dtype ", dtype.value_or(x.scalar_type()),
                      "; expected a floating or complex dtype. Convert the input, or pass dtype.");
  const Tensor sum = at::sum(local, input.dims, keepdim, dtype);
  return from_reduction(sum / static_cast<double>(input.count), input, Partial());
}

Tensor mean_all(const Tensor& x, Dtype dtype) { return mean_dims(x, std::nullopt, false, dtype); }

}  // namespace

SHARD_PATCH(reductions) {
  patch.function<at::_ops::sum>(sum_all).shards("any dim");
  patch.function<at::_ops::sum_dim_IntList>(sum_dims).shards("any dim");
  patch.function<at::_ops::mean>(mean_all).shards("any dim");
  patch.function<at::_ops::mean_dim>(mean_dims).shards("any dim");
}

}  // namespace shard
