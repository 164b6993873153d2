// SPDX-License-Identifier: Apache-2.0
// What the patches of reductions share: sums above autograd, and rules for the others below it.
#pragma once

#include <shard/patch.h>

#include <functional>

namespace shard {

// ---- above autograd (sum, mean, prod)

/// A tensor to reduce over `dims`.
struct ReductionInput {
  at::Tensor tensor;          ///< Shard or Replicate
  std::vector<int64_t> dims;  ///< wrapped and sorted; all dims when none were given
  bool keepdim = false;
  bool reduces_shard = false;  ///< whether the sharded dim is among them
  int64_t count = 1;           ///< elements reduced into one, globally
  DeviceMesh mesh;
  SpecRef spec;
};
ReductionInput reduction_input(const at::Tensor& x, at::OptionalIntArrayRef dims, bool keepdim);

/// Wraps the local reduction: `reduced` when the sharded dim was reduced, else the shard dim where
/// it now is.
at::Tensor from_reduction(const at::Tensor& local, const ReductionInput& input, Placement reduced);

// ---- below autograd

// NOTE [Reductions as rules]
// LibTorch's own gradient formulas of these reductions are made of elementwise ops and sums, which
// are right on ShardTensors, twice. So only the value needs code here: what the ranks do with their
// local tensors when the sharded dim is among the reduced ones. The result is the same on every
// rank.

/// What is reduced: dims (wrapped and sorted) of the global and of the local tensor.
struct ReducedDims {
  std::vector<int64_t> dims;
  bool keepdim = false;
  bool is_full = false;  ///< no dims were given: all are reduced
  int64_t count = 1;     ///< elements reduced into one, globally

  /// Sizes of the reduction of `local`.
  std::vector<int64_t> result_sizes(const at::Tensor& local) const;
  /// Elements of `local` reduced into one; 0 on a rank with an empty shard.
  int64_t local_count(const at::Tensor& local) const;
};
/// Of an argument that is an int, a list of ints or None; None and the empty list: all dims.
ReducedDims reduced_dims(const OpCall& call, size_t dim_argument, bool keepdim);

ReducedDims all_dims_reduced(const OpCall& call);

/// Runs when the sharded dim is reduced, on every rank (collective): the op's results.
using AcrossRanks = std::function<std::vector<at::Tensor>(const at::Tensor& local)>;
/// `tensor(0)` is the one reduced. Otherwise, and on one rank, the op itself runs on the local
/// tensor.
std::optional<Decision> reduction_rule(const OpCall& call, const ReducedDims& reduced,
                                       AcrossRanks across_ranks);

/// What a rank without elements contributes: `value` everywhere, lying like the others' results.
at::Tensor result_of_nothing(const at::Tensor& local, const ReducedDims& reduced,
                             const at::Scalar& value, at::ScalarType dtype);

/// What the maximum (minimum) over nothing is: the part of a rank with an empty shard.
at::Scalar extremum_of_nothing(at::ScalarType dtype, bool max);

/// The reduction of equally sized tensors of all ranks (not differentiable).
at::Tensor reduced_over_ranks(const at::Tensor& local, const DeviceMesh& mesh, ReduceOp op);
/// (ranks, sizes...): the tensors of all ranks (not differentiable).
at::Tensor gathered_over_ranks(const at::Tensor& local, const DeviceMesh& mesh);

}  // namespace shard
