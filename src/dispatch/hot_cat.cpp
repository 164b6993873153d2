// SPDX-License-Identifier: Apache-2.0
// A typed kernel for `cat` along a dim that is not cut, of contiguous tensors that lie alike but
// for it. Everything else goes the boxed way.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <shard/memory_order.h>
#include <shard/patch.h>
#include <torch/library.h>

#include "dispatch/boxed_call.h"
#include "dispatch/engine.h"
#include "dispatch/function_fallback.h"
#include "tensor/impl.h"
#include "tensor/leaf_hook.h"

namespace shard {
namespace {

using at::Tensor;
using c10::DispatchKeySet;
using Cat = at::_ops::cat;
using Impls = c10::SmallVector<const ShardTensorImpl*, 8>;

/// Nothing unless all are ShardTensors without levels below, on one mesh, in a list of tensors (it
/// is another one when the op is called boxed).
Impls impls_of(const at::ITensorListRef& tensors) {
  Impls impls;
  if (!tensors.isUnboxed()) return impls;
  for (const Tensor& tensor : tensors.toUnboxed()) {
    const auto* impl = impl_of(tensor);
    if (!impl || impl_of(impl->local()) ||
        (!impls.empty() && impl->mesh().layout_ref() != impls[0]->mesh().layout_ref())) {
      return {};
    }
    impls.push_back(impl);
  }
  return impls;
}

bool lies_like(const ShardTensorImpl& x, const ShardTensorImpl& first, int64_t dim) {
  const auto& a = *x.spec();
  const auto& b = *first.spec();
  if (x.copied_at_version() >= 0 || !x.is_contiguous() || x.dtype() != first.dtype()) return false;
  if (&a == &b) return true;
  if (x.dim() != first.dim() || a.placement() != b.placement() || a.partition() != b.partition()) {
    return false;
  }
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (d != dim && x.size(d) != first.size(d)) return false;
  }
  return true;
}

/// The result's spec; nullptr when the inputs must move first.
SpecRef spec_of_all(const Impls& impls, int64_t dim) {
  if (impls.empty() || detail::is_intercepted()) return nullptr;
  const ShardTensorImpl& first = *impls[0];
  const auto& spec = first.spec();
  if (dim < 0 || dim >= first.dim() || spec->is_partial() ||
      (spec->is_shard() && spec->shard_dim() == dim) || has_thin_pieces(*spec)) {
    return nullptr;
  }
  Shape shape(spec->global_shape());
  auto& size = shape[static_cast<size_t>(dim)];
  size = 0;
  for (const auto* impl : impls) {
    if (!lies_like(*impl, first, dim)) return nullptr;
    size += impl->size(dim);
  }
  return spec->with(spec->placement(), shape, spec->partition());
}

Tensor boxed(BoxedKernel kernel, DispatchKeySet keys, const at::ITensorListRef& tensors,
             int64_t dim) {
  return call_boxed(kernel, detail::handle<Cat>(), keys,
                    std::vector<Tensor>(tensors.begin(), tensors.end()), dim);
}

Tensor cat_function(DispatchKeySet keys, const at::ITensorListRef& tensors, int64_t dim) {
  if (impls_of(tensors).empty() || detail::is_intercepted()) {
    return boxed(&function_fallback, keys, tensors, dim);
  }
  for (const Tensor& tensor : tensors.toUnboxed()) ensure_leaf_hook(tensor);
  return detail::at_boundary(
      [&] { return Cat::redispatch(below_function_level(keys), tensors, dim); });
}

Tensor cat_dispatch(DispatchKeySet keys, const at::ITensorListRef& tensors, int64_t given) {
  const Impls impls = impls_of(tensors);
  const int64_t dim = !impls.empty() && given < 0 ? given + impls[0]->dim() : given;
  auto spec = spec_of_all(impls, dim);
  if (!spec) return boxed(&dispatch_fallback, keys, tensors, given);
  const at::AutoDispatchBelowADInplaceOrView guard;
  c10::SmallVector<Tensor, 8> locals;
  for (const auto* impl : impls) locals.push_back(impl->local());
  return wrap(at::cat(at::TensorList(locals), dim), impls[0]->mesh(), std::move(spec));
}

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) { m.impl("cat", cat_function); }
TORCH_LIBRARY_IMPL(aten, Fake, m) { m.impl("cat", cat_dispatch); }

}  // namespace
}  // namespace shard
