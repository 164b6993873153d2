// SPDX-License-Identifier: Apache-2.0
// ShardTensorImpl: the at::TensorImpl behind a ShardTensor. It has the global sizes, no storage,
// and owns the local tensor, the spec and the rank's mesh handle.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <shard/mesh.h>
#include <shard/spec.h>

#include "tensor/keys.h"

namespace shard {

/// NOTE [Levels]
/// A tensor on an n-d mesh is a ShardTensor over the first mesh dim whose local tensor is a
/// ShardTensor over the others. All code that splits, moves and joins works on one level, 1-d, and
/// calls LibTorch's ops on "the local tensor"; where that is a ShardTensor itself, the next level
/// takes over. A tensor dim cut by several mesh dims is one level, over these dims flattened
/// (DeviceMesh::flattened): two levels never cut the same tensor dim (checked). A level that is
/// missing, as in a plain tensor, counts as Replicate.
class ShardTensorImpl final : public c10::TensorImpl {
 public:
  ShardTensorImpl(at::Tensor local, DeviceMesh mesh, SpecRef spec);

  const at::Tensor& local() const { return local_; }
  const SpecRef& spec() const { return spec_; }
  const DeviceMesh& mesh() const { return mesh_; }

  /// After an op that changes geometry in place (unsqueeze_, t_).
  void set_local(at::Tensor local, SpecRef spec);

  /// NOTE [Marked copies]
  /// A view that needed communication is a copy: writing it, or reading it after its base changed,
  /// would silently differ from a true view. Such copies carry the version their base had and are
  /// checked at every use; views of marked copies inherit the mark. -1: not marked.
  int64_t copied_at_version() const { return copied_at_version_; }
  void mark_copy(int64_t base_version) { copied_at_version_ = base_version; }

  /// Whether the leaf hook (tensor/leaf_hook.h) has been added.
  bool has_leaf_hook = false;

  const char* tensorimpl_type_name() const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& source) override;

 private:
  template <class Version>
  c10::intrusive_ptr<TensorImpl> copy(Version&& version, bool allow_metadata_change) const;
  void set_geometry(c10::IntArrayRef global_shape);

  at::Tensor local_;
  SpecRef spec_;
  DeviceMesh mesh_;
  int64_t copied_at_version_ = -1;
};

/// The impl of a ShardTensor, nullptr for plain and undefined tensors.
inline ShardTensorImpl* impl_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(kDispatchKey)
             ? static_cast<ShardTensorImpl*>(tensor.unsafeGetTensorImpl())
             : nullptr;
}

/// Wraps without autograd. The local must be detached and have the spec's local shape (not
/// checked).
inline at::Tensor wrap(at::Tensor local, const DeviceMesh& mesh, SpecRef spec) {
  return at::Tensor(c10::make_intrusive<ShardTensorImpl>(std::move(local), mesh, std::move(spec)));
}

/// An alias of a local tensor that shares storage and version counter but no autograd history.
inline at::Tensor local_alias(const at::Tensor& local) {
  auto* impl = local.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true));
}

/// Whether `tensor` or a level of it is cut along `dim`.
bool is_cut_along(const at::Tensor& tensor, int64_t dim);

/// `tensor` with the level that cuts `dim` gathered, so that another one may cut it.
/// Differentiable.
at::Tensor uncut(const at::Tensor& tensor, int64_t dim);

}  // namespace shard
