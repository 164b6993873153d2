// SPDX-License-Identifier: Apache-2.0
// The differentiable (twice) primitives that function patches are made of. A patch goes from
// sharded to local tensors, runs LibTorch's own ops there, and wraps the result; it needs no
// backward of its own.
//
// NOTE [Gradient placements]
// The gradient of a ShardTensor is the gradient with respect to its *global* value. It lies like
// the tensor itself, except that the gradient of a Partial tensor is Replicate. `redistribute` is
// the identity on global values, so its backward only moves the gradient to the dual placement of
// its input.
//
// NOTE [Same graph on every rank]
// All primitives make the same autograd nodes in the same order on every rank, also on ranks with
// empty shards or without neighbours: the backward of a communicating node is itself collective.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/error.h>
#include <shard/mesh.h>
#include <shard/spec.h>
#include <shard/tensor.h>

#include <optional>
#include <vector>

namespace shard {

/// Spec, mesh and raw local tensor of a ShardTensor (not differentiable). SpecMismatch on plain
/// tensors.
const SpecRef& spec_of(const at::Tensor& tensor);
const DeviceMesh& mesh_of(const at::Tensor& tensor);
const at::Tensor& raw_local(const at::Tensor& tensor);
/// The plain tensor below all levels of a tensor on an n-d mesh (not differentiable); plain tensors
/// themselves.
const at::Tensor& innermost(const at::Tensor& tensor);
/// A new tensor of the levels, dtype, device and memory format of `like`. Dims that levels of
/// `like` cut must keep their size.
at::Tensor empty_of_shape(const at::Tensor& like, c10::IntArrayRef shape);

/// Placement of the gradient: Replicate for Partial, else the spec itself.
SpecRef dual_spec(const SpecRef& spec);

/// The local part. `gradient` (default dual_spec): placement of the gradient that arrives for it;
/// Partial() for a Replicate tensor that every rank uses differently.
at::Tensor to_local(const at::Tensor& tensor, std::optional<Placement> gradient = std::nullopt);

/// Wraps a local result. The local's sizes must be spec->local_shape(rank) (SpecMismatch).
at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh, const SpecRef& spec);

/// Moves to `target`, which must have the same global shape. Returns `tensor` itself when it lies
/// so.
at::Tensor redistribute(const at::Tensor& tensor, const SpecRef& target);

/// A plain tensor becomes Replicate; its gradient is reduced over the mesh and plain again.
/// ShardTensors and undefined tensors pass.
at::Tensor promote(const at::Tensor& tensor, const DeviceMesh& mesh);

/// Weights for use in rank-dependent local computation: plain (or Replicate) in, plain out; the
/// backward sums the gradients of all of them over the mesh in one message. Undefined ones pass.
std::vector<at::Tensor> local_weights(const DeviceMesh& mesh,
                                      const std::vector<at::Tensor>& weights);
at::Tensor local_weight(const DeviceMesh& mesh, const at::Tensor& weight);
/// Weights for use alike on every rank (replicated inputs): their gradients need no reduction.
std::vector<at::Tensor> local_copies(const DeviceMesh& mesh,
                                     const std::vector<at::Tensor>& weights);

/// Local contributions -> their sum on every rank (differentiable; results may be used differently
/// on every rank). One message forward, one backward.
at::Tensor all_reduce(const at::Tensor& local, const DeviceMesh& mesh);
/// The same for use alike on every rank, as the gradient of a weight is used: its own gradient
/// reaches every contribution once.
at::Tensor common_sum(const at::Tensor& local, const DeviceMesh& mesh);

/// Rows that lie anywhere to where they belong, in one exchange: rank r holds the global rows
/// `held[r]` (in this order, along `dim` of `own`) and gets its interval of `target`. Together the
/// rows held are [0, sum of target), each once. Not differentiable: for rules, below autograd.
at::Tensor move_rows(const at::Tensor& own, int64_t dim, const std::vector<std::vector<Rows>>& held,
                     const Partition& target, const DeviceMesh& mesh);

/// Local tensors of equal sizes -> (ranks, sizes...) on every rank, for use alike on every rank.
at::Tensor all_gather_stack(const at::Tensor& local, const DeviceMesh& mesh);

}  // namespace shard
