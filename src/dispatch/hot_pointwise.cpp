// SPDX-License-Identifier: Apache-2.0
// Typed kernels, at both levels, for the elementwise ops that models call most: boxing costs more
// than the rest of the runtime. They take the case in which every tensor lies alike (or is a
// number) and hand all others to the boxed fallbacks, which also look for handlers.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
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

/// Whether all tensor arguments share one spec, neither Partial nor a marked copy, and tell their
/// order in memory; 0-d plain tensors pass.
class Alike {
 public:
  void see(const Tensor& tensor) {
    const auto* impl = impl_of(tensor);
    if (!impl) {
      ok_ &= tensor.dim() == 0;
      return;
    }
    if (!first_) first_ = impl;
    ok_ &= !impl->spec()->is_partial() && impl->copied_at_version() < 0 &&
           same(impl->spec(), first_->spec()) &&
           (impl->is_contiguous() || !has_thin_pieces(*impl->spec()));
  }
  template <class T>
  void see(const T&) {}
  explicit operator bool() const { return ok_ && first_; }
  const ShardTensorImpl& first() const { return *first_; }

 private:
  const ShardTensorImpl* first_ = nullptr;
  bool ok_ = true;
};

const Tensor& local(const Tensor& tensor) {
  const auto* impl = impl_of(tensor);
  return impl ? impl->local() : tensor;
}
template <class T>
const T& local(const T& value) {
  return value;
}

/// Whether autograd's own kernel can take the arguments as they are.
class Passable {
 public:
  void see(const Tensor& tensor) {
    if (const auto* impl = impl_of(tensor)) {
      ensure_leaf_hook(tensor);
      // NOTE [Regrouping] is for the fallback.
      ok_ &= !first_ ||
             (impl->mesh().layout_ref() == first_->mesh().layout_ref() && !impl_of(impl->local()));
      if (!first_) first_ = impl;
    } else {
      ok_ &= tensor.dim() == 0 && !(tensor.requires_grad() && at::GradMode::is_enabled());
    }
  }
  template <class T>
  void see(const T&) {}
  explicit operator bool() const { return ok_; }

 private:
  const ShardTensorImpl* first_ = nullptr;
  bool ok_ = true;
};

template <class Op, class Schema = typename Op::schema>
struct Hot;

template <class Op, class... Args>
struct Hot<Op, Tensor(Args...)> {
  static Tensor function_level(DispatchKeySet keys, Args... args) {
    Passable passable;
    (passable.see(args), ...);
    if (!passable || detail::is_intercepted()) {
      return call_boxed(&function_fallback, detail::handle<Op>(), keys, args...);
    }
    return detail::at_boundary([&] { return Op::redispatch(below_function_level(keys), args...); });
  }
  static Tensor dispatch_level(DispatchKeySet keys, Args... args) {
    Alike alike;
    (alike.see(args), ...);
    if (!alike || detail::is_intercepted()) {
      return call_boxed(&dispatch_fallback, detail::handle<Op>(), keys, args...);
    }
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto& spec = alike.first().spec();
    return wrap(Op::call(local(args)...), alike.first().mesh(), spec);
  }
};

template <class Op, class... Args>
struct Hot<Op, Tensor&(Tensor&, Args...)> {
  static Tensor& function_level(DispatchKeySet keys, Tensor& self, Args... args) {
    Passable passable;
    passable.see(self);
    (passable.see(args), ...);
    if (!passable || !impl_of(self) || detail::is_intercepted()) {
      call_boxed(&function_fallback, detail::handle<Op>(), keys, self, args...);
      return self;
    }
    return detail::at_boundary(
        [&]() -> Tensor& { return Op::redispatch(below_function_level(keys), self, args...); });
  }
  static Tensor& dispatch_level(DispatchKeySet keys, Tensor& self, Args... args) {
    Alike alike;
    alike.see(self);
    (alike.see(args), ...);
    if (!alike || !impl_of(self) || detail::is_intercepted()) {
      call_boxed(&dispatch_fallback, detail::handle<Op>(), keys, self, args...);
      return self;
    }
    const at::AutoDispatchBelowADInplaceOrView guard;
    Tensor target = impl_of(self)->local();
    Op::call(target, local(args)...);
    if (!target.is_inference())
      target.unsafeGetTensorImpl()->bump_version();  // NOTE [Versions of locals]
    return self;
  }
};

template <class... Ops>
void register_function_level(torch::Library& m) {
  (m.impl((std::string(Ops::name) + (*Ops::overload_name ? "." : "") + Ops::overload_name).c_str(),
          &Hot<Ops>::function_level),
   ...);
}
template <class... Ops>
void register_dispatch_level(torch::Library& m) {
  (m.impl((std::string(Ops::name) + (*Ops::overload_name ? "." : "") + Ops::overload_name).c_str(),
          &Hot<Ops>::dispatch_level),
   ...);
}

#define SHARD_HOT_OPS                                                                              \
  at::_ops::relu, at::_ops::sigmoid, at::_ops::tanh, at::_ops::exp, at::_ops::neg, at::_ops::sqrt, \
      at::_ops::abs, at::_ops::gelu, at::_ops::silu, at::_ops::add_Tensor, at::_ops::sub_Tensor,   \
      at::_ops::mul_Tensor, at::_ops::div_Tensor, at::_ops::pow_Tensor_Scalar,                     \
      at::_ops::add__Tensor, at::_ops::mul__Tensor, at::_ops::relu_, at::_ops::threshold_backward, \
      at::_ops::sigmoid_backward, at::_ops::tanh_backward, at::_ops::gelu_backward,                \
      at::_ops::silu_backward

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) { register_function_level<SHARD_HOT_OPS>(m); }
TORCH_LIBRARY_IMPL(aten, Fake, m) { register_dispatch_level<SHARD_HOT_OPS>(m); }

}  // namespace
}  // namespace shard
