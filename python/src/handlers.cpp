// SPDX-License-Identifier: Apache-2.0
// Patches written in Python: a handler is a boxed kernel that calls a Python function.
#include <shard/handlers.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <memory>
#include <optional>
#include <string>

#include "bindings.h"

namespace shard::python {
namespace {

using torch::jit::Stack;

void push_results(const c10::OperatorHandle& op, const py::object& out, Stack* stack) {
  const auto& returns = op.schema().returns();
  if (returns.empty()) return;
  if (returns.size() == 1) {
    stack->push_back(torch::jit::toIValue(out, returns[0].real_type()));
    return;
  }
  const auto results = out.cast<py::tuple>();
  check<ConfigError>(results.size() == returns.size(), op.schema().name(), "got ", results.size(),
                     " results from the handler; expected ", returns.size(),
                     ". Return one for each of the op's.");
  for (size_t i = 0; i < returns.size(); ++i) {
    stack->push_back(torch::jit::toIValue(results[i], returns[i].real_type()));
  }
}

/// Calls the function with the op's arguments, keyword-only ones by name.
class PythonKernel final : public c10::OperatorKernel {
 public:
  explicit PythonKernel(py::object function) : function_(std::move(function)) {}
  ~PythonKernel() override {
    const py::gil_scoped_acquire lock;
    function_ = py::object();
  }
  PythonKernel(const PythonKernel&) = delete;
  PythonKernel& operator=(const PythonKernel&) = delete;

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const auto& parameters = op.schema().arguments();
    const auto arguments = torch::jit::pop(*stack, parameters.size());
    const py::gil_scoped_acquire lock;
    py::list positional;
    py::dict named;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const py::object value = torch::jit::toPyObject(arguments[i]);
      if (parameters[i].kwarg_only()) {
        named[parameters[i].name().c_str()] = value;
      } else {
        positional.append(value);
      }
    }
    push_results(op, call(op, positional, named), stack);
  }

 private:
  /// A TypeError would make `x + y` think that x has no such operator, and hide the text.
  py::object call(const c10::OperatorHandle& op, const py::list& positional,
                  const py::dict& named) const {
    try {
      return function_(*positional, **named);
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      const auto text = c10::str("[", op.schema().name(), "] in the handler: ", error.what());
      py::raise_from(error, py::module_::import("shardtensor").attr("Error").ptr(), text.c_str());
      throw py::error_already_set();
    }
  }

  py::object function_;
};

HandlerRegistration register_handler(HandlerLevel level, const std::string& op,
                                     const py::function& function) {
  auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<PythonKernel>(function));
  return detail::add_handler(level, op, std::move(kernel));
}

/// `with` and next_handler.
class NextHandler {
 public:
  void enter() { scope_.emplace(); }
  void exit() { scope_.reset(); }

 private:
  std::optional<detail::NextHandlerScope> scope_;
};

}  // namespace

void bind_handlers(py::module_& m) {
  py::class_<HandlerRegistration>(m, "HandlerRegistration",
                                  "Keeps a handler registered until it is removed or dropped.")
      .def("remove", &HandlerRegistration::remove)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](HandlerRegistration& self, const py::args&) { self.remove(); });
  m.def(
      "register_function_handler",
      [](const std::string& op, const py::function& function) {
        return register_handler(HandlerLevel::Function, op, function);
      },
      py::arg("op"), py::arg("function"),
      "Above autograd: `function` takes the op's arguments (at least one ShardTensor) and is made "
      "of differentiable functions. `op` is a qualified name, also of an op registered later.");
  m.def(
      "register_dispatch_handler",
      [](const std::string& op, const py::function& function) {
        return register_handler(HandlerLevel::Dispatch, op, function);
      },
      py::arg("op"), py::arg("function"),
      "Below autograd: LibTorch's own formula differentiates the op.");
  py::class_<NextHandler>(m, "NextHandler")
      .def(py::init<>())
      .def("__enter__", &NextHandler::enter)
      .def("__exit__", [](NextHandler& self, const py::args&) { self.exit(); });
}

}  // namespace shard::python
