// SPDX-License-Identifier: Apache-2.0
// The rule of ops that fill a tensor with random numbers.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <shard/error.h>
#include <shard/rule.h>

#include <bit>

#include "random/fill.h"
#include "random/integer_range.h"
#include "tensor/impl.h"

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

c10::OperatorHandle find_op(const std::string& qualified) {
  const size_t dot = qualified.find('.');
  const std::string overload = dot == std::string::npos ? "" : qualified.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(qualified.substr(0, dot).c_str(),
                                                        overload.c_str());
}

/// The op itself, on a plain tensor and with a generator of ours.
Sampler sampler_of(const c10::OperatorHandle& op, const std::string& name,
                   std::vector<IValue> arguments, size_t generator_at) {
  auto fill = [op, arguments = std::move(arguments), generator_at](const Tensor& numbers,
                                                                   const at::Generator& generator) {
    torch::jit::Stack stack = arguments;
    stack[0] = numbers;
    stack[generator_at] = generator;
    op.callBoxed(&stack);
  };
  return {name, std::move(fill)};
}

/// What stands for the kernel that an op runs, where its arguments choose: random_ makes a number
/// of two words where the range is not smaller than some power of two.
std::string kernel_of(const std::string& op, const std::vector<IValue>& arguments,
                      at::ScalarType dtype) {
  const bool has_from = op == "aten::random_.from";
  if (!has_from && op != "aten::random_.to") return op;
  const int64_t from = has_from ? arguments[1].toInt() : 0;
  const auto to = arguments[has_from ? 2 : 1].toOptional<int64_t>();
  if (to && *to <= from) return op;  // refuses them
  return c10::str("aten::random_ of ", std::bit_width(integer_range(from, to, dtype)), " bits");
}

size_t index_of_generator(const c10::OperatorHandle& op) {
  const auto index = op.schema().argumentIndexWithName("generator");
  TORCH_INTERNAL_ASSERT(index, op.schema().name(), " has no generator");
  return static_cast<size_t>(*index);
}

/// NOTE [Versions of locals]: the engine bumps the outermost level's.
const Tensor& bump_inner_levels(const Tensor& local) {
  const Tensor* level = &local;
  while (const auto* impl = impl_of(*level)) {
    level = &impl->local();
    if (!level->is_inference()) level->unsafeGetTensorImpl()->bump_version();
  }
  return *level;
}

std::optional<Decision> draw(const OpCall& call) {
  const auto& self = call.tensor(0);
  check<SpecMismatch>(!self.is_partial(), call.name(), "got ", *self.spec,
                      " to fill; expected Shard or Replicate. redistribute() it first.");
  Decision decision;
  decision.inputs.push_back(self.layout());
  decision.outputs.push_back(self.layout());
  if (call.mesh().size() == 1 || self.tensor.numel() == 0) return decision;
  std::vector<IValue> arguments;
  for (size_t i = 0; i < call.size(); ++i) arguments.push_back(call.argument(i));
  const auto op = find_op(call.name());
  const size_t generator_at = index_of_generator(op);
  const auto generator = generator_or_default(arguments[generator_at].toOptional<at::Generator>(),
                                              self.tensor.device());
  const std::string kernel = kernel_of(call.name(), arguments, self.tensor.scalar_type());
  auto sampler = sampler_of(op, kernel, std::move(arguments), generator_at);
  const Tensor whole = self.tensor;
  decision.local = [whole, generator, sampler = std::move(sampler)](c10::ArrayRef<IValue> local) {
    fill_part(bump_inner_levels(local[0].toTensor()), whole, sampler, generator);
    return std::vector<IValue>{local[0]};
  };
  return decision;
}

}  // namespace

Rule draws() { return draw; }

}  // namespace shard
