// SPDX-License-Identifier: Apache-2.0
// How a function patch hangs in LibTorch's dispatcher: one typed kernel an op, which lets autocast
// go first, asks for a handler of the user's, brings tensors to the same levels and then calls the
// patch. For <shard/patch.h> and <shard/handlers.h>; nobody else needs it.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/SymIntArrayRef.h>
#include <shard/comm_counter.h>
#include <shard/error_boundary.h>
#include <shard/modes.h>
#include <shard/tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace shard {

/// The two levels at which a call of an op can be taken over: above autograd, and below it.
enum class HandlerLevel : uint8_t { Function, Dispatch };
struct Handler;

namespace detail {

// Patches take plain integers; the dispatcher passes symbolic ones.
template <class T>
decltype(auto) concrete(T&& value) {
  using V = std::remove_cvref_t<T>;
  if constexpr (std::is_same_v<V, c10::SymInt>) {
    return value.expect_int();
  } else if constexpr (std::is_same_v<V, c10::SymIntArrayRef>) {
    return C10_AS_INTARRAYREF_SLOW(value);
  } else if constexpr (std::is_same_v<V, at::OptionalSymIntArrayRef>) {
    return value ? at::OptionalIntArrayRef(C10_AS_INTARRAYREF_SLOW(*value))
                 : at::OptionalIntArrayRef();
  } else if constexpr (std::is_same_v<V, std::optional<c10::SymInt>>) {
    return value ? std::optional<int64_t>(value->expect_int()) : std::nullopt;
  } else {
    return std::forward<T>(value);
  }
}

c10::DispatchKeySet below_function(c10::DispatchKeySet keys);
/// Whether autocast is on and has a kernel for this op: it must run first (it calls the op again).
bool autocast_goes_first(const c10::OperatorHandle& op, c10::DispatchKeySet keys);

template <class Op>
const c10::OperatorHandle& handle() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
  return op;
}

std::string qualified_name(const char* name, const char* overload);
template <class Op>
std::string op_name() {
  return qualified_name(Op::name, Op::overload_name);
}

/// How many handlers (<shard/handlers.h>) the process has.
extern std::atomic<int> handler_count;
/// Almost always no: then a call goes straight to its patch or rule.
inline bool is_intercepted() {
  return handler_count.load(std::memory_order_relaxed) != 0 || explains();
}

using HandlerRef = std::shared_ptr<const Handler>;
/// The handler that a call of `op` goes to, or null.
HandlerRef find_handler(HandlerLevel level, const c10::OperatorHandle& op);
void run_handler(const HandlerRef& handler, const c10::OperatorHandle& op,
                 torch::jit::Stack* stack);

/// A call that no patch or rule covers, when ops may gather (<shard/modes.h>): runs it on whole
/// tensors and cuts the results like the first sharded input.
void gather_and_run(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack);

/// Calls `visit` for every tensor in an argument or a result.
template <class T, class Visit>
void each_tensor(const T& value, const Visit& visit) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    visit(value);
  } else if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
    if (value) visit(*value);
  } else if constexpr (std::is_same_v<T, at::TensorList> ||
                       std::is_same_v<T, std::vector<at::Tensor>> ||
                       std::is_same_v<T, at::ITensorListRef>) {
    for (const at::Tensor& tensor : value) visit(tensor);
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&](const auto&... tensors) { (each_tensor(tensors, visit), ...); }, value);
  }
}

/// NOTE [Regrouping]: whether two tensors over the same mesh are cut by other groups of its dims,
/// and the call after all its tensors were brought to the same groups.
bool have_other_levels(const at::Tensor& a, const at::Tensor& b);
void call_regrouped(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack);
template <class... Args>
bool are_grouped_differently(const Args&... args) {
  const at::Tensor* first = nullptr;
  bool differ = false;
  const auto see = [&](const at::Tensor& tensor) {
    if (first) differ |= have_other_levels(*first, tensor);
    if (!first && is_shard_tensor(tensor)) first = &tensor;
  };
  (each_tensor(args, see), ...);
  return differ;
}

/// The line about one call (SHARD_EXPLAIN), printed when it ends.
class Explanation {
 public:
  Explanation(std::string op, const char* by);
  ~Explanation();
  Explanation(const Explanation&) = delete;
  Explanation& operator=(const Explanation&) = delete;

  void input(const at::Tensor& tensor) { describe(inputs_, tensor); }
  void output(const at::Tensor& tensor) { describe(outputs_, tensor); }
  template <class T>
  void input(const T& value) {
    each_tensor(value, [this](const at::Tensor& tensor) { input(tensor); });
  }
  template <class T>
  void output(const T& value) {
    each_tensor(value, [this](const at::Tensor& tensor) { output(tensor); });
  }
  void note(const std::string& text) { notes_ += "; " + text; }

 private:
  static void describe(std::string& text, const at::Tensor& tensor);

  std::string op_;
  const char* by_;
  CommCounter counter_;
  std::string inputs_, outputs_, notes_;
  int exceptions_;
};

/// Runs a boxed function on typed arguments.
using BoxedFunction =
    std::function<void(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*)>;
c10::KernelFunction boxed_kernel(BoxedFunction function);
template <class Result, class... Args>
Result run_boxed(BoxedFunction function, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 Args... args) {
  return boxed_kernel(std::move(function))
      .call<Result, Args...>(op, keys, std::forward<Args>(args)...);
}

/// The kernel in the dispatcher, one per op and level: the user's handler if there is one, else the
/// patch.
template <HandlerLevel level, class Op, class Function, class Schema = typename Op::schema>
struct PatchKernel;
template <HandlerLevel level, class Op, class Function, class Result, class... Args>
struct PatchKernel<level, Op, Function, Result(Args...)> {
  inline static Function* patch = nullptr;

  static Result call(c10::DispatchKeySet keys, Args... args) {
    return at_boundary([&]() -> Result { return go(keys, std::forward<Args>(args)...); });
  }

 private:
  static Result go(c10::DispatchKeySet keys, Args... args) {
    if (level == HandlerLevel::Function && autocast_goes_first(handle<Op>(), keys)) {
      return Op::redispatch(below_function(keys), std::forward<Args>(args)...);
    }
    if (is_intercepted()) [[unlikely]]
      return intercepted(keys, std::forward<Args>(args)...);
    return run(keys, std::forward<Args>(args)...);
  }

  static Result run(c10::DispatchKeySet keys, Args... args) {
    if constexpr (level == HandlerLevel::Function) {
      if (are_grouped_differently(args...)) [[unlikely]] {
        return run_boxed<Result, Args...>(&call_regrouped, handle<Op>(), keys,
                                          std::forward<Args>(args)...);
      }
    }
    const CommLabel label(Op::name);
    if constexpr (level == HandlerLevel::Function) {
      try {
        return patch(concrete(args)...);
      } catch (const MissingShardPatch&) {
        if (fallback_mode() == FallbackMode::Refuse) throw;
      }
      return run_boxed<Result, Args...>(&gather_and_run, handle<Op>(), keys,
                                        std::forward<Args>(args)...);
    } else {
      return patch(concrete(args)...);
    }
  }

  static Result intercepted(c10::DispatchKeySet keys, Args... args) {
    if (const auto handler = find_handler(level, handle<Op>())) {
      return run_boxed<Result, Args...>(
          [&](const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
            run_handler(handler, op, stack);
          },
          handle<Op>(), keys, std::forward<Args>(args)...);
    }
    if (!explains()) return run(keys, std::forward<Args>(args)...);
    Explanation explanation(op_name<Op>(), "patch");
    (explanation.input(args), ...);
    Result result = run(keys, std::forward<Args>(args)...);
    explanation.output(result);
    return result;
  }
};

}  // namespace detail

}  // namespace shard
