// SPDX-License-Identifier: Apache-2.0
// NOTE [Handlers]
// LibTorch reads its dispatch tables without a lock, and warns when a kernel is replaced. So a
// handler never touches them: the kernels that are there already (PatchKernel, the two boxed
// fallbacks, the hot kernels) ask for a handler first. There is a table for the process and one for
// each rank: what a rank registers inside launch() holds from that point of *its* program on, so
// thread ranks agree about every call without waiting for each other.
#include <ATen/core/LegacyTypeDispatch.h>
#include <shard/error.h>
#include <shard/handlers.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/rank_context.h"
#include "dispatch/handler.h"
#include "dispatch/op_info.h"
#include "dispatch/stack.h"

namespace shard {

class HandlerTable {
 public:
  void add(const HandlerRef& handler) {
    const std::lock_guard lock(mutex_);
    handlers_[{handler->op, handler->level}].push_back(handler);
    ++detail::handler_count;
  }
  void remove(const HandlerRef& handler) {
    const std::lock_guard lock(mutex_);
    detail::handler_count -=
        static_cast<int>(std::erase(handlers_[{handler->op, handler->level}], handler));
  }
  /// Of one op, the first registered first.
  std::vector<HandlerRef> list(const std::string& op, HandlerLevel level) const {
    const std::lock_guard lock(mutex_);
    const auto found = handlers_.find({op, level});
    return found == handlers_.end() ? std::vector<HandlerRef>() : found->second;
  }
  ~HandlerTable() {  // of a rank that ended
    for (const auto& [key, handlers] : handlers_) {
      detail::handler_count -= static_cast<int>(handlers.size());
    }
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, HandlerLevel>, std::vector<HandlerRef>> handlers_;
};

namespace {

std::shared_ptr<HandlerTable> process_table() {
  static const auto table = std::make_shared<HandlerTable>();
  return table;
}

std::shared_ptr<HandlerTable> current_table() {
  auto* rank = rank_context();
  if (!rank) return process_table();
  if (!rank->handlers) rank->handlers = std::make_shared<HandlerTable>();
  return rank->handlers;
}

thread_local const Handler* running = nullptr;
thread_local const Handler* skipped = nullptr;

std::optional<c10::OperatorHandle> find_op(const std::string& name) {
  const auto dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({name.substr(0, dot), overload});
}

/// The line about a handler's call.
class StackExplanation {
 public:
  StackExplanation(const Handler& handler, const c10::OperatorHandle& op,
                   const torch::jit::Stack& stack)
      : returns_(op.schema().returns().size()) {
    if (!explains()) return;
    line_.emplace(handler.op, "handler");
    see(stack, op.schema().arguments().size(),
        [this](const at::Tensor& tensor) { line_->input(tensor); });
  }
  void results(const torch::jit::Stack& stack) {
    if (line_) see(stack, returns_, [this](const at::Tensor& tensor) { line_->output(tensor); });
  }

 private:
  template <class Visit>
  static void see(const torch::jit::Stack& stack, size_t count, const Visit& visit) {
    for (size_t i = stack.size() - count; i < stack.size(); ++i) for_each_tensor(stack[i], visit);
  }
  size_t returns_;
  std::optional<detail::Explanation> line_;
};

void check_op(const Handler& handler, const c10::OperatorHandle& op) {
  check<ConfigError>(handler.level == HandlerLevel::Dispatch || !op_info(op).is_view, "register",
                     "got a function handler for the view op ", handler.op,
                     "; expected one at the dispatch level: autograd must see the alias. Use "
                     "register_dispatch_handler.");
  if (!handler.signature) return;
  const auto difference = c10::findSchemaDifferences(
      *handler.signature, op.schema().cloneWithRealTypes(/*with_symint=*/false));
  check<ConfigError>(!difference, "register", "got a handler for ", handler.op,
                     " of another type: ", difference.value_or(""),
                     "; expected parameters that fit ", op.schema(), ". Correct the function.");
}

HandlerRegistration add(Handler handler) {
  check<ConfigError>(handler.op.find("::") != std::string::npos, "register", "got the op name '",
                     handler.op, "'; expected a qualified one. Write namespace::name.overload.");
  if (const auto op = find_op(handler.op)) {
    check_op(handler, *op);
    handler.is_checked = true;
  }
  const HandlerRef entry = std::make_shared<const Handler>(std::move(handler));
  auto table = current_table();
  table->add(entry);
  return HandlerRegistration([entry, weak = std::weak_ptr(table)] {
    if (const auto table = weak.lock()) table->remove(entry);
  });
}

}  // namespace

HandlerRegistration register_dispatch_handler(const std::string& op, Rule rule) {
  return add({.op = op, .level = HandlerLevel::Dispatch, .rule = std::move(rule)});
}

namespace detail {

std::atomic<int> handler_count{0};

std::string qualified_name(const char* name, const char* overload) {
  return *overload == '\0' ? name : c10::str(name, ".", overload);
}

HandlerRegistration add_handler(HandlerLevel level, const std::string& op,
                                c10::KernelFunction kernel) {
  return add({.op = op, .level = level, .kernel = std::move(kernel)});
}

HandlerRegistration add_named_handler(const std::string& op, c10::KernelFunction kernel,
                                      const c10::FunctionSchema& signature) {
  return add({.op = op,
              .level = HandlerLevel::Function,
              .kernel = std::move(kernel),
              .signature = std::make_shared<const c10::FunctionSchema>(signature)});
}

HandlerRef find_handler(HandlerLevel level, const c10::OperatorHandle& op) {
  const auto& name = op_info(op).name;
  auto handlers = process_table()->list(name, level);
  if (const auto* rank = rank_context(); rank && rank->handlers) {
    const auto own = rank->handlers->list(name, level);
    handlers.insert(handlers.end(), own.begin(), own.end());
  }
  if (skipped && skipped->op == name && skipped->level == level) {
    const auto last = std::find_if(handlers.begin(), handlers.end(),
                                   [](const auto& handler) { return handler.get() == skipped; });
    handlers.erase(last, handlers.end());
    skipped = nullptr;
  }
  return handlers.empty() ? nullptr : handlers.back();
}

void run_handler(const HandlerRef& handler, const c10::OperatorHandle& op,
                 torch::jit::Stack* stack) {
  if (!handler->is_checked) check_op(*handler, op);
  struct Running {
    const Handler* outer;
    explicit Running(const Handler* handler) : outer(std::exchange(running, handler)) {}
    ~Running() { running = outer; }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
  };
  const Running scope(handler.get());
  const CommLabel label(handler->op.c_str());
  StackExplanation explanation(*handler, op, *stack);
  if (handler->level == HandlerLevel::Function) {
    handler->kernel.callBoxed(op, {}, stack);
  } else {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::NoGradGuard no_graph;
    handler->kernel.callBoxed(op, {}, stack);
  }
  explanation.results(*stack);
}

c10::KernelFunction boxed_kernel(BoxedFunction function) {
  struct Kernel final : c10::OperatorKernel {
    explicit Kernel(BoxedFunction function) : function(std::move(function)) {}
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) const {
      function(op, keys, stack);
    }
    BoxedFunction function;
  };
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(std::move(function)));
}

NextHandlerScope::NextHandlerScope() : outer_(skipped) {
  check<ConfigError>(running, "next_handler",
                     "got a call outside a handler; expected one inside. Call the op itself.");
  skipped = running;
}
NextHandlerScope::~NextHandlerScope() { skipped = outer_; }

}  // namespace detail
}  // namespace shard
