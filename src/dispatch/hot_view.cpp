// SPDX-License-Identifier: Apache-2.0
// Typed kernels for `view`, which models call as often as elementwise ops. Marked copies and levels
// with others inside or around, whose view may have to move, go the boxed way.
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <shard/patch.h>
#include <torch/library.h>

#include "dispatch/boxed_call.h"
#include "dispatch/engine.h"
#include "dispatch/function_fallback.h"
#include "dispatch/level_scope.h"
#include "dispatch/view_replay.h"
#include "tensor/impl.h"
#include "tensor/leaf_hook.h"

namespace shard {
namespace {

using at::Tensor;
using c10::DispatchKeySet;
using View = at::_ops::view;

Tensor view_function(DispatchKeySet keys, const Tensor& x, c10::SymIntArrayRef sizes) {
  ensure_leaf_hook(x);
  const ViewReplayGuard guard(true);
  return detail::at_boundary(
      [&] { return View::redispatch(below_function_level(keys), x, sizes); });
}

/// The spec of a local view; nullptr when the input must move first.
SpecRef viewed_spec(const ShardTensorSpec& spec, c10::IntArrayRef sizes) {
  if (!spec.is_shard()) return spec.with(spec.placement(), sizes);
  auto plan = plan_view(spec, sizes);
  if (plan.input != Layout(spec)) return nullptr;
  return spec.with(plan.output.placement, sizes, std::move(plan.output.partition));
}

Tensor view_dispatch(DispatchKeySet keys, const Tensor& x, c10::SymIntArrayRef symbolic) {
  const auto* impl = impl_of(x);
  SpecRef spec;
  const bool is_only_level = !impl_of(impl->local()) && !detail::is_inner_level();
  if (is_only_level && impl->copied_at_version() < 0 && !detail::is_intercepted()) {
    spec =
        viewed_spec(*impl->spec(), at::infer_size_dv(C10_AS_INTARRAYREF_SLOW(symbolic), x.numel()));
  }
  if (!spec) return call_boxed(&dispatch_fallback, detail::handle<View>(), keys, x, symbolic);
  const at::AutoDispatchBelowADInplaceOrView guard;
  const c10::IntArrayRef sizes = spec->global_shape();
  std::optional<std::vector<int64_t>> strides;  // NOTE [Strides of views]
  if (!impl->is_contiguous()) {
    strides = at::detail::computeStride(x.sizes(), x.strides(), sizes);
    TORCH_CHECK(strides,
                "view size is not compatible with input tensor's size and stride (at least "
                "one dimension spans across two contiguous subspaces). Use .reshape(...) instead.");
  }
  const auto local = spec->local_shape(impl->mesh().rank());
  Tensor view =
      wrap(View::call(impl->local(), c10::fromIntArrayRefSlow(local)), impl->mesh(), spec);
  auto* result = impl_of(view);
  if (strides) result->set_sizes_and_strides(sizes, *strides);
  if (!strides && !result->is_contiguous()) result->set_sizes_contiguous(sizes);
  return view;
}

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) { m.impl("view", view_function); }
TORCH_LIBRARY_IMPL(aten, Fake, m) { m.impl("view", view_dispatch); }

}  // namespace
}  // namespace shard
