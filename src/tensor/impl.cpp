// SPDX-License-Identifier: Apache-2.0
#include "tensor/impl.h"

#include <ATen/ops/empty.h>
#include <shard/error.h>
#include <shard/primitives.h>

#include <algorithm>

#include "comm/payload.h"

namespace shard {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

DispatchKeySet keys_for(const at::Tensor& local) {
  const auto backend =
      local.key_set() & DispatchKeySet(DispatchKeySet::RAW, c10::full_backend_mask);
  auto keys = DispatchKeySet({kFunctionKey, kDispatchKey}) | backend |
              DispatchKeySet({DispatchKey::Dense, DispatchKey::ADInplaceOrView,
                              DispatchKey::AutogradFunctionality});
  if (local.is_inference()) {
    keys = keys - c10::autograd_dispatch_keyset - DispatchKeySet(DispatchKey::ADInplaceOrView);
  }
  return keys;
}

void check_levels(const at::Tensor& local, const ShardTensorSpec& spec) {
  if (!spec.is_shard()) return;
  check<SpecMismatch>(!is_cut_along(local, spec.shard_dim()), "spec", "got ", spec,
                      " whose local tensor is itself cut along tensor dim ", spec.shard_dim(),
                      " over ", impl_of(local)->mesh().layout(),
                      "; expected every tensor dim cut at one place. Redistribute one of the mesh "
                      "dims to another tensor dim before this op.");
}

[[maybe_unused]] const bool installed = (set_unwrap(&innermost), true);

}  // namespace

const at::Tensor& innermost(const at::Tensor& tensor) {
  const at::Tensor* bottom = &tensor;
  while (const auto* impl = impl_of(*bottom)) bottom = &impl->local();
  return *bottom;
}

bool is_cut_along(const at::Tensor& tensor, int64_t dim) {
  const auto* impl = impl_of(tensor);
  return impl && (impl->spec()->placement().is_shard(dim) || is_cut_along(impl->local(), dim));
}

at::Tensor empty_of_shape(const at::Tensor& like, c10::IntArrayRef shape) {
  if (const auto* impl = impl_of(like)) {
    const auto spec = impl->spec()->with_shape(shape);
    return wrap(empty_of_shape(impl->local(), spec->local_shape(impl->mesh().rank())), impl->mesh(),
                spec);
  }
  const auto format = static_cast<size_t>(like.dim()) == shape.size()
                          ? like.suggest_memory_format()
                          : c10::MemoryFormat::Contiguous;
  return at::empty(shape, like.options().memory_format(format));
}

ShardTensorImpl::ShardTensorImpl(at::Tensor local, DeviceMesh mesh, SpecRef spec)
    : TensorImpl(keys_for(local), local.dtype(), local.device()),
      local_(std::move(local)),
      spec_(std::move(spec)),
      mesh_(std::move(mesh)) {
  if (impl_of(local_)) [[unlikely]]
    check_levels(local_, *spec_);
  set_storage_access_should_throw();
  set_geometry(spec_->global_shape());
  if (local_.unsafeGetTensorImpl()->is_wrapped_number()) set_wrapped_number(true);
}

// NOTE [Strides of the wrapper]
// The local tensor's stride *order* (zeros and gaps kept) over the global sizes, so that
// is_contiguous(format), suggest_memory_format() and contiguous() decide as for the local tensor.
// They must decide alike on every rank: views have strides of their own (NOTE [Strides of views]),
// new tensors an order that does not hang on a rank's rows (NOTE [One memory order on all ranks]).
void ShardTensorImpl::set_geometry(c10::IntArrayRef global_shape) {
  if (local_.is_contiguous()) {
    set_sizes_contiguous(global_shape);
    return;
  }
  const auto local_strides = local_.strides();
  const auto local_sizes = local_.sizes();
  const auto ndim = global_shape.size();
  c10::SmallVector<size_t, 6> inner_first(ndim);
  for (size_t i = 0; i < ndim; ++i) inner_first[i] = ndim - 1 - i;
  std::stable_sort(inner_first.begin(), inner_first.end(),
                   [&](size_t a, size_t b) { return local_strides[a] < local_strides[b]; });
  c10::SmallVector<int64_t, 6> strides(ndim);
  int64_t dense = 1;
  int64_t local_dense = 1;
  for (const size_t i : inner_first) {
    if (local_strides[i] == 0) {
      strides[i] = 0;
      continue;
    }
    if (local_sizes[i] != 1 && local_strides[i] != local_dense) {  // a gap: keep one
      dense *= 2;
      local_dense = local_strides[i];
    }
    strides[i] = dense;
    dense *= std::max<int64_t>(global_shape[i], 1);
    local_dense *= std::max<int64_t>(local_sizes[i], 1);
  }
  set_sizes_and_strides(global_shape, strides);
}

void ShardTensorImpl::set_local(at::Tensor local, SpecRef spec) {
  local_ = std::move(local);
  spec_ = std::move(spec);
  set_geometry(spec_->global_shape());
}

// LibTorch puts this name into the errors of what cannot be intercepted (printing, torch::save,
// data_ptr), so it carries the advice.
const char* ShardTensorImpl::tensorimpl_type_name() const {
  return "ShardTensorImpl (a sharded tensor: print shard::ShardTensor(x), save or read its "
         ".local() or "
         ".full())";
}

template <class Version>
c10::intrusive_ptr<c10::TensorImpl> ShardTensorImpl::copy(Version&& version,
                                                          bool allow_metadata_change) const {
  auto result = c10::make_intrusive<ShardTensorImpl>(local_, mesh_, spec_);
  if (result->strides() != strides()) result->set_sizes_and_strides(sizes(), strides());
  result->copied_at_version_ = copied_at_version_;
  result->set_version_counter(std::forward<Version>(version));
  result->set_allow_tensor_metadata_change(allow_metadata_change);
  return result;
}

c10::intrusive_ptr<c10::TensorImpl> ShardTensorImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version, bool allow_metadata_change) const {
  return copy(version, allow_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> ShardTensorImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version, bool allow_metadata_change) const {
  return copy(std::move(version), allow_metadata_change);
}

void ShardTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& source) {
  check<SpecMismatch>(
      source->key_set().has(kDispatchKey), "set_data",
      "got a plain tensor as the new data of a ShardTensor; expected a ShardTensor. "
      "Wrap it with shard::from_local first.");
  const auto* other = static_cast<const ShardTensorImpl*>(source.get());
  local_ = other->local_;
  spec_ = other->spec_;
  mesh_ = other->mesh_;
  copied_at_version_ = other->copied_at_version_;
  set_sizes_and_strides(other->sizes(), other->strides());
}

}  // namespace shard
