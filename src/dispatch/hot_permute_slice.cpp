// SPDX-License-Identifier: Apache-2.0
// Typed kernels for `permute`, for `slice` along a dim that is not cut, and for `reshape` of what
// is contiguous, as in hot_view.cpp. Everything else goes the boxed way.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/reshape_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/view_ops.h>
#include <shard/patch.h>
#include <torch/library.h>

#include <bit>

#include "dispatch/boxed_call.h"
#include "dispatch/engine.h"
#include "dispatch/function_fallback.h"
#include "dispatch/remembered.h"
#include "dispatch/view_replay.h"
#include "tensor/impl.h"
#include "tensor/leaf_hook.h"

namespace shard {
namespace {

using at::Tensor;
using c10::DispatchKeySet;
using MaybeInt = std::optional<c10::SymInt>;
using Permute = at::_ops::permute;
using Slice = at::_ops::slice_Tensor;
using Reshape = at::_ops::reshape;

/// Whether a view of `x` is one of its local tensor and nothing else.
bool is_simple(const ShardTensorImpl* impl) {
  return !impl_of(impl->local()) && impl->copied_at_version() < 0 && !detail::is_intercepted();
}

/// The view of the wrapper: NOTE [Strides of views].
Tensor view_of(const ShardTensorImpl* impl, const Tensor& local, SpecRef spec,
               c10::IntArrayRef strides) {
  Tensor view = wrap(local, impl->mesh(), std::move(spec));
  auto* result = impl_of(view);
  if (result->strides() != strides) {
    result->set_sizes_and_strides(result->spec()->global_shape(), strides);
  }
  return view;
}

// ---- permute

Tensor permute_function(DispatchKeySet keys, const Tensor& x, c10::IntArrayRef order) {
  ensure_leaf_hook(x);
  const ViewReplayGuard guard(true);
  return detail::at_boundary(
      [&] { return Permute::redispatch(below_function_level(keys), x, order); });
}

/// The dims of `order`, counted from the front; nothing when they are not all dims, each once.
std::optional<c10::SmallVector<int64_t, 8>> order_of(c10::IntArrayRef order, int64_t ndim) {
  if (static_cast<int64_t>(order.size()) != ndim || ndim > 64) return std::nullopt;
  c10::SmallVector<int64_t, 8> dims;
  uint64_t seen = 0;
  for (const int64_t given : order) {
    const int64_t dim = given < 0 ? given + ndim : given;
    if (dim < 0 || dim >= ndim) return std::nullopt;
    seen |= uint64_t{1} << dim;
    dims.push_back(dim);
  }
  if (static_cast<size_t>(std::popcount(seen)) != dims.size()) return std::nullopt;
  return dims;
}

Tensor permute_dispatch(DispatchKeySet keys, const Tensor& x, c10::IntArrayRef given) {
  const auto* impl = impl_of(x);
  const auto order = is_simple(impl) ? order_of(given, x.dim()) : std::nullopt;
  if (!order) return call_boxed(&dispatch_fallback, detail::handle<Permute>(), keys, x, given);
  const at::AutoDispatchBelowADInplaceOrView guard;
  c10::SmallVector<int64_t, 8> sizes;
  c10::SmallVector<int64_t, 8> strides;
  Placement placement = impl->spec()->placement();
  for (size_t i = 0; i < order->size(); ++i) {
    const int64_t dim = (*order)[i];
    sizes.push_back(x.size(dim));
    strides.push_back(x.stride(dim));
    if (placement.is_shard() && impl->spec()->shard_dim() == dim) {
      placement = Shard(static_cast<int64_t>(i));
    }
  }
  auto spec = impl->spec()->with(placement, sizes, impl->spec()->partition());
  return view_of(impl, Permute::call(impl->local(), given), std::move(spec), strides);
}

// ---- slice

Tensor slice_function(DispatchKeySet keys, const Tensor& x, int64_t dim, MaybeInt start,
                      MaybeInt end, c10::SymInt step) {
  const auto* impl = impl_of(x);
  if (!is_simple(impl)) {
    return call_boxed(&function_fallback, detail::handle<Slice>(), keys, x, dim, start, end, step);
  }
  ensure_leaf_hook(x);
  const ViewReplayGuard guard(true);
  return detail::at_boundary([&] {
    Tensor part = Slice::redispatch(below_function_level(keys), x, dim, std::move(start),
                                    std::move(end), std::move(step));
    if (at::GradMode::is_enabled()) remember_input(part, impl->spec());
    return part;
  });
}

Tensor slice_dispatch(DispatchKeySet keys, const Tensor& x, int64_t given, MaybeInt start,
                      MaybeInt end, c10::SymInt step) {
  const auto* impl = impl_of(x);
  const int64_t dim = given < 0 ? given + x.dim() : given;
  const auto& spec = impl->spec();
  if (!is_simple(impl) || dim < 0 || dim >= x.dim() ||
      (spec->is_shard() && spec->shard_dim() == dim)) {
    return call_boxed(&dispatch_fallback, detail::handle<Slice>(), keys, x, given, start, end,
                      step);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto at_dim = static_cast<size_t>(dim);
  c10::SmallVector<int64_t, 8> sizes(x.sizes().begin(), x.sizes().end());
  c10::SmallVector<int64_t, 8> strides(x.strides().begin(), x.strides().end());
  strides[at_dim] *= step.expect_int();
  const Tensor local =
      Slice::call(impl->local(), dim, std::move(start), std::move(end), std::move(step));
  sizes[at_dim] = local.size(dim);
  return view_of(impl, local, spec->with(spec->placement(), sizes, spec->partition()), strides);
}

// ---- reshape

Tensor reshape_function(DispatchKeySet keys, const Tensor& x, c10::SymIntArrayRef sizes) {
  if (x.is_contiguous() && !detail::is_intercepted()) return at::_ops::view::call(x, sizes);
  return call_boxed(&function_fallback, detail::handle<Reshape>(), keys, x, sizes);
}

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) {
  m.impl("permute", permute_function);
  m.impl("slice.Tensor", slice_function);
  m.impl("reshape", reshape_function);
}
TORCH_LIBRARY_IMPL(aten, Fake, m) {
  m.impl("permute", permute_dispatch);
  m.impl("slice.Tensor", slice_dispatch);
}

}  // namespace
}  // namespace shard
