// SPDX-License-Identifier: Apache-2.0
// ShardTensor: the user's handle on a tensor that is cut over a mesh. The tensor itself is an
// ordinary at::Tensor (global sizes, local data) that any torch::nn module takes; the handle adds
// what at::Tensor cannot say: the spec, the local part, the whole.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/mesh.h>
#include <shard/spec.h>

#include <optional>
#include <ostream>
#include <string>

namespace shard {

/// Whether `tensor` is a ShardTensor. False for undefined tensors.
bool is_shard_tensor(const at::Tensor& tensor);

/// A checked view of an at::Tensor as a ShardTensor. Copying shares the tensor.
class ShardTensor {
 public:
  /// Errors: SpecMismatch when `tensor` is plain or undefined.
  explicit ShardTensor(at::Tensor tensor);

  const at::Tensor& tensor() const { return tensor_; }
  operator const at::Tensor&() const { return tensor_; }  // NOLINT(google-explicit-constructor)

  /// The mesh that the tensor lies on, and how: one placement per mesh dim.
  DeviceMesh mesh() const;
  Placements placements() const;
  /// Sizes of the pieces along tensor dim `dim`, in the order of the ranks that hold them; the size
  /// alone where it is not cut.
  Partition partition(int64_t dim) const;

  /// How it lies over the first mesh dim: on a 1-d mesh, all there is to say.
  const ShardTensorSpec& spec() const;
  const SpecRef& spec_ref() const;

  /// This rank's part, differentiable; no communication. Of a Replicate tensor every rank gets the
  /// whole, and every rank must use it alike (their gradients are taken to be equal) unless
  /// `gradient` says Partial(). A Partial tensor that requires grad is refused (SpecMismatch).
  at::Tensor local(std::optional<Placement> gradient = std::nullopt) const;
  /// The whole tensor as a plain one on every rank, differentiable. Collective over the mesh.
  at::Tensor full() const;
  /// The same global values placed otherwise, differentiable (the backward is the exact adjoint).
  /// Collective over the mesh unless nothing moves. `partition`: piece sizes of a Shard (empty:
  /// kept where the dim stays cut, else even_partition).
  ShardTensor redistribute(const Placements& placements, Partition partition = {}) const;
  /// On an n-d mesh: one partition per mesh dim (see scatter_tensor).
  ShardTensor redistribute(const Placements& placements,
                           const std::vector<Partition>& partitions) const;

 private:
  at::Tensor tensor_;
};
/// Spec, mesh and this rank's local values.
std::ostream& operator<<(std::ostream& out, const ShardTensor& tensor);

/// Cuts the tensor that rank `source` of `mesh` holds; other ranks may pass an undefined tensor
/// (what they pass is not read). Only the pieces travel. The result is a new leaf that does not
/// require grad. Collective over `mesh`. Errors (on every rank): SpecMismatch, ConfigError (bad
/// source).
at::Tensor scatter_tensor(const at::Tensor& tensor, int source, const DeviceMesh& mesh,
                          const Placements& placements, Partition partition = {});
/// On an n-d mesh: one partition per mesh dim (empty ones: even_partition). Where several mesh dims
/// cut the same tensor dim, the partition of the first has all pieces, the last mesh dim varying
/// fastest.
at::Tensor scatter_tensor(const at::Tensor& tensor, int source, const DeviceMesh& mesh,
                          const Placements& placements, const std::vector<Partition>& partitions);

/// A ShardTensor of which every rank passes its own part; differentiable. Without `partition` the
/// ranks agree on sizes and dtype by one small all-gather (collective over `mesh`; SpecMismatch on
/// every rank when the parts do not fit). With `partition` (piece sizes of a Shard) nothing is
/// communicated.
at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                      std::optional<Partition> partition = std::nullopt);

/// On an n-d mesh: one partition per mesh dim. Nothing is communicated.
at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                      const std::vector<Partition>& partitions);

/// New tensors of a global shape; every rank allocates its own part only. No communication.
at::Tensor empty(c10::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
                 at::TensorOptions options = {}, Partition partition = {});
at::Tensor zeros(c10::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
                 at::TensorOptions options = {}, Partition partition = {});
at::Tensor empty(c10::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
                 at::TensorOptions options, const std::vector<Partition>& partitions);

/// What happens when an op meets plain tensors next to ShardTensors: they count as Replicate
/// (Silent), so with one warning an op (Warn), or SpecMismatch (Disabled; 0-d tensors always pass).
/// Process-wide.
enum class TensorPromotionMode : uint8_t { Silent, Warn, Disabled };
void set_tensor_promotion_mode(TensorPromotionMode mode);
TensorPromotionMode tensor_promotion_mode();

}  // namespace shard
