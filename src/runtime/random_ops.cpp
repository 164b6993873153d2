// SPDX-License-Identifier: Apache-2.0
// Registers, when libshard is loaded, one boxed kernel for every aten op with a `generator`
// argument at the mode key of rank threads (see rank_generator.h).
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <memory>
#include <string>

#include "base/rank_context.h"

namespace shard {
namespace {

constexpr auto kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

int find_generator(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "generator") return static_cast<int>(i);
  }
  return -1;
}

/// The device that the op runs on: its first tensor's, else the one asked for, else the CPU.
c10::Device device_of(at::ArrayRef<c10::IValue> arguments) {
  c10::Device device = c10::kCPU;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) return argument.toTensor().device();
    if (argument.isDevice()) device = argument.toDevice();
  }
  return device;
}

bool is_default(const c10::IValue& generator) {
  return generator.isNone() || generator.toGenerator().unsafeGetGeneratorImpl() ==
                                   at::detail::getDefaultCPUGenerator().unsafeGetGeneratorImpl();
}

void fill_in_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const auto at = static_cast<size_t>(find_generator(op.schema()));
  c10::IValue& generator = (*stack)[stack->size() - count + at];
  const RankContext* context = rank_context();
  if (context != nullptr && context->generator.defined() && is_default(generator) &&
      device_of(torch::jit::last(*stack, count)).is_cpu()) {
    generator = c10::IValue(context->generator);
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kMode), stack);
}

std::unique_ptr<torch::Library> register_random_ops() {
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", kMode, __FILE__,
                                                  static_cast<uint32_t>(__LINE__));
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || find_generator(op->schema()) < 0) continue;
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    library->impl((name.name.substr(6) + overload).c_str(),
                  torch::CppFunction::makeFromBoxedFunction<&fill_in_generator>());
  }
  return library;
}

const auto random_ops = register_random_ops();

}  // namespace
}  // namespace shard

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
