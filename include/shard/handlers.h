// SPDX-License-Identifier: Apache-2.0
// Handlers: patches that a program registers while it runs, for ops of LibTorch or of its own.
// A handler goes before the built-in patch or rule of its op; when its registration ends, what was
// there before is back. Registered before launch() it holds for all ranks of the process, inside
// launch() for the rank that registered it: every rank must then do so at the same place.
//
//   const auto registration = shard::register_function_handler<at::_ops::renorm>(my_renorm);
#pragma once

#include <shard/patch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace shard {

/// Keeps a handler registered for as long as it lives. May outlive the rank it was made by.
class [[nodiscard]] HandlerRegistration {
 public:
  HandlerRegistration() = default;
  explicit HandlerRegistration(std::function<void()> undo) : undo_(std::move(undo)) {}
  HandlerRegistration(HandlerRegistration&& other) noexcept
      : undo_(std::exchange(other.undo_, {})) {}
  HandlerRegistration& operator=(HandlerRegistration&& other) noexcept {
    std::swap(undo_, other.undo_);
    return *this;
  }
  ~HandlerRegistration() { remove(); }
  /// Ends it now.
  void remove() {
    if (auto undo = std::exchange(undo_, {})) undo();
  }

 private:
  std::function<void()> undo_;
};

namespace detail {

HandlerRegistration add_handler(HandlerLevel level, const std::string& op,
                                c10::KernelFunction kernel);
HandlerRegistration add_named_handler(const std::string& op, c10::KernelFunction kernel,
                                      const c10::FunctionSchema& signature);

/// Gives a handler with plain integers the op's own signature.
template <class Op, class Function, class Schema = typename Op::schema>
struct HandlerFunctor;
template <class Op, class Function, class Result, class... Args>
struct HandlerFunctor<Op, Function, Result(Args...)> final : c10::OperatorKernel {
  explicit HandlerFunctor(Function* function) : function(function) {}
  Result operator()(Args... args) { return (*function)(concrete(args)...); }
  Function* function;
};

template <class Op, class Function>
c10::KernelFunction handler_kernel(Function* function) {
  using Functor = HandlerFunctor<Op, Function>;
  return c10::KernelFunction::makeFromUnboxedFunctor<false, Functor>(
      std::make_unique<Functor>(function));
}

/// While it lives, the next call of the op skips the handler that is running.
class NextHandlerScope {
 public:
  NextHandlerScope();
  ~NextHandlerScope();
  NextHandlerScope(const NextHandlerScope&) = delete;
  NextHandlerScope& operator=(const NextHandlerScope&) = delete;

 private:
  const Handler* outer_;
};

}  // namespace detail

/// Above autograd: `function` has the parameters of `Op` (an at::_ops struct; plain integers for
/// symbolic ones) and at least one ShardTensor among them; it is made of differentiable primitives
/// like a function patch. Errors: ConfigError for view ops.
template <class Op, class Function>
HandlerRegistration register_function_handler(Function* function) {
  return detail::add_handler(HandlerLevel::Function, detail::op_name<Op>(),
                             detail::handler_kernel<Op>(function));
}

/// The same for any op by its qualified name ("mylib::blur", "aten::add.Tensor"), also for one that
/// is registered later. The types of `function` are those that torch::Library::def would take.
/// Errors: ConfigError when they do not fit the op's schema (at the first call, if it comes later).
template <class Function>
HandlerRegistration register_named_function_handler(const std::string& op, Function* function) {
  return detail::add_named_handler(op,
                                   c10::KernelFunction::makeFromUnboxedRuntimeFunction(function),
                                   *c10::detail::inferFunctionSchemaFromFunctor<Function*>());
}

/// Below autograd: `function` gets ShardTensors and returns ShardTensors; LibTorch's own formula
/// differentiates the op (and calls this level again for what the formula is made of).
template <class Op, class Function>
HandlerRegistration register_dispatch_handler(Function* function) {
  return detail::add_handler(HandlerLevel::Dispatch, detail::op_name<Op>(),
                             detail::handler_kernel<Op>(function));
}
/// Below autograd, as a rule (<shard/rule.h>): how the inputs must lie and how the results lie
/// then.
HandlerRegistration register_dispatch_handler(const std::string& op, Rule rule);

/// Inside a handler of `Op`: what the call would do without this handler (an earlier handler, the
/// built-in patch or rule, LibTorch's formula). For handlers that cover some cases only.
template <class Op, class... Args>
auto next_handler(Args&&... args) {
  const detail::NextHandlerScope scope;
  return Op::call(std::forward<Args>(args)...);
}

}  // namespace shard
