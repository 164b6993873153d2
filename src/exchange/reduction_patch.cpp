// SPDX-License-Identifier: Apache-2.0
#include <ATen/Dispatch.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <shard/reduction_patch.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "tensor/impl.h"

namespace shard {
namespace {

using at::Tensor;

bool contains(const std::vector<int64_t>& dims, int64_t dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

/// Where tensor dim `dim`, which is not reduced, lies in the result.
int64_t dim_after(const std::vector<int64_t>& dims, bool keepdim, int64_t dim) {
  if (keepdim) return dim;
  return dim - std::count_if(dims.begin(), dims.end(), [&](int64_t d) { return d < dim; });
}

template <class T>
at::Scalar bound(bool largest) {
  using Limits = std::numeric_limits<T>;
  if constexpr (Limits::has_infinity) return largest ? Limits::infinity() : -Limits::infinity();
  return largest ? Limits::max() : Limits::lowest();
}

}  // namespace

ReductionInput reduction_input(const Tensor& x, at::OptionalIntArrayRef dims, bool keepdim) {
  ReductionInput input;
  input.tensor = spec_of(x)->is_partial() ? redistribute(x, spec_of(x)->replicated()) : x;
  input.mesh = mesh_of(x);
  input.spec = spec_of(input.tensor);
  input.keepdim = keepdim;
  const auto selected = at::dim_list_to_bitset(dims, static_cast<size_t>(x.dim()));
  const bool all = !dims || dims->empty();
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (!all && !selected[static_cast<size_t>(dim)]) continue;
    input.dims.push_back(dim);
    input.count *= x.size(dim);
    input.reduces_shard |= dim == input.spec->shard_dim();
  }
  return input;
}

Tensor from_reduction(const Tensor& local, const ReductionInput& input, Placement reduced) {
  const auto& spec = input.spec;
  if (!spec->is_shard() || input.reduces_shard) {
    const Placement placement = spec->is_shard() ? reduced : spec->placement();
    return from_local(local, input.mesh, spec->with(placement, local.sizes()));
  }
  const int64_t dim = dim_after(input.dims, input.keepdim, spec->shard_dim());
  Shape shape(local.sizes().begin(), local.sizes().end());
  shape[static_cast<size_t>(dim)] = spec->global_shape()[static_cast<size_t>(spec->shard_dim())];
  return from_local(local, input.mesh, spec->with(Shard(dim), shape, spec->partition()));
}

std::vector<int64_t> ReducedDims::result_sizes(const Tensor& local) const {
  std::vector<int64_t> sizes;
  for (int64_t dim = 0; dim < local.dim(); ++dim) {
    const bool is_reduced = contains(dims, dim);
    if (!is_reduced || keepdim) sizes.push_back(is_reduced ? 1 : local.size(dim));
  }
  return sizes;
}

int64_t ReducedDims::local_count(const Tensor& local) const {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= local.size(dim);
  return count;
}

ReducedDims all_dims_reduced(const OpCall& call) {
  ReducedDims reduced;
  reduced.is_full = true;
  reduced.dims.resize(static_cast<size_t>(call.tensor(0).ndim()));
  std::iota(reduced.dims.begin(), reduced.dims.end(), 0);
  reduced.count = call.tensor(0).tensor.numel();
  return reduced;
}

ReducedDims reduced_dims(const OpCall& call, size_t dim_argument, bool keepdim) {
  const auto& input = call.tensor(0);
  const auto& argument = call.argument(dim_argument);
  std::vector<int64_t> given;
  if (argument.isInt()) given.push_back(argument.toInt());
  if (argument.isIntList()) given = argument.toIntVector();
  auto reduced = all_dims_reduced(call);
  reduced.keepdim = keepdim;
  if (given.empty()) return reduced;
  reduced.is_full = false;
  reduced.count = 1;
  const auto selected = at::dim_list_to_bitset(given, static_cast<size_t>(input.ndim()));
  std::erase_if(reduced.dims, [&](int64_t dim) { return !selected[static_cast<size_t>(dim)]; });
  for (const int64_t dim : reduced.dims) reduced.count *= input.sizes()[static_cast<size_t>(dim)];
  return reduced;
}

std::optional<Decision> reduction_rule(const OpCall& call, const ReducedDims& reduced,
                                       AcrossRanks across_ranks) {
  const Layout input = call.tensor(0).is_partial() ? Layout() : call.tensor(0).layout();
  Decision decision;
  decision.inputs.push_back(input);
  if (!input.is_shard()) {
    decision.outputs.emplace_back();
  } else if (!contains(reduced.dims, input.dim())) {
    decision.outputs.push_back(
        input.moved_to(dim_after(reduced.dims, reduced.keepdim, input.dim())));
  } else {
    decision.outputs.emplace_back();
    // Nothing to reduce anywhere: the op's own answer, or its own error, on every rank.
    if (call.mesh().size() == 1 || reduced.count == 0) return decision;
    decision.local = [across_ranks =
                          std::move(across_ranks)](c10::ArrayRef<c10::IValue> arguments) {
      std::vector<c10::IValue> results;
      for (auto& result : across_ranks(arguments[0].toTensor())) results.emplace_back(result);
      return results;
    };
  }
  return decision;
}

Tensor result_of_nothing(const Tensor& local, const ReducedDims& reduced, const at::Scalar& value,
                         at::ScalarType dtype) {
  const auto options = local.options().dtype(dtype);
  if (!is_shard_tensor(local)) return at::full(reduced.result_sizes(local), value, options);
  return at::full_like(local.sum(reduced.dims, reduced.keepdim), value, options);
}

at::Scalar extremum_of_nothing(at::ScalarType dtype, bool max) {
  return AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, dtype, "extremum",
                                    [&] { return bound<scalar_t>(!max); });
}

Tensor reduced_over_ranks(const Tensor& local, const DeviceMesh& mesh, ReduceOp op) {
  Tensor result = local.clone(c10::MemoryFormat::Contiguous);
  mesh.comm().all_reduce(result, op);
  return result;
}

Tensor gathered_over_ranks(const Tensor& local, const DeviceMesh& mesh) {
  auto sizes = local.sizes().vec();
  sizes.insert(sizes.begin(), mesh.size());
  const Tensor all = empty_of_shape(local.unsqueeze(0), sizes);
  mesh.comm().all_gather_v(local, all.unbind(0));
  return all;
}

}  // namespace shard
