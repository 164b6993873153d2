// SPDX-License-Identifier: Apache-2.0
// The function level of every op without a function patch: plain tensors that need a gradient
// become Replicate (so that autograd knows how to reduce it), view ops are made replayable, and the
// op goes on to LibTorch's own autograd formula.
#include "dispatch/function_fallback.h"

#include <shard/error_boundary.h>
#include <shard/patch.h>
#include <torch/library.h>

#include "dispatch/op_info.h"
#include "dispatch/regroup.h"
#include "dispatch/remembered.h"
#include "dispatch/self_test.h"
#include "dispatch/split_lists.h"
#include "dispatch/stack.h"
#include "dispatch/view_replay.h"
#include "tensor/grid.h"
#include "tensor/impl.h"
#include "tensor/leaf_hook.h"

namespace shard {
namespace {

using at::Tensor;
using torch::jit::Stack;

struct Written {
  bool plain = false;
  bool sharded = false;
};

Written written_kinds(const OpInfo& info, const Stack& stack, size_t begin) {
  Written written;
  for (size_t i = 0; i < info.writes.size(); ++i) {
    if (!info.writes[i]) continue;
    for_each_tensor(stack[begin + i], [&](const Tensor& tensor) {
      (impl_of(tensor) ? written.sharded : written.plain) = true;
    });
  }
  return written;
}

/// plain.add_(sharded): the op runs on plain tensors, sharded arguments are gathered
/// differentiably.
void run_plain(const c10::OperatorHandle& op, Stack* stack, size_t begin) {
  for (size_t i = begin; i < stack->size(); ++i) {
    map_tensors((*stack)[i], [](const Tensor& tensor) {
      return impl_of(tensor) ? ShardTensor(tensor).full() : tensor;
    });
  }
  op.callBoxed(stack);
}

const ShardTensorImpl* first_sharded(const Stack& stack, size_t begin) {
  const ShardTensorImpl* found = nullptr;
  for (size_t i = begin; i < stack.size() && !found; ++i) {
    for_each_tensor(stack[i], [&](const Tensor& tensor) {
      if (!found) found = impl_of(tensor);
    });
  }
  return found;
}

bool needs_promotion(const Tensor& tensor) {
  return !impl_of(tensor) && tensor.requires_grad() && at::GradMode::is_enabled();
}

/// Plain tensors without gradient stay plain: they count as Replicate below.
void promote_arguments(Stack* stack, size_t begin, const DeviceMesh& mesh) {
  for (size_t i = begin; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    bool any = false;
    for_each_tensor(value, [&](const Tensor& tensor) {
      ensure_leaf_hook(tensor);
      any |= needs_promotion(tensor) || tensor_promotion_mode() != TensorPromotionMode::Silent;
    });
    if (any) map_tensors(value, [&](const Tensor& tensor) { return promote(tensor, mesh); });
  }
}

void reduce_pending_sums(Stack* stack, size_t begin) {
  for (size_t i = begin; i < stack->size(); ++i) {
    map_tensors((*stack)[i], [](const Tensor& tensor) {
      const auto* impl = impl_of(tensor);
      if (!impl) return tensor;
      if (!impl_of(impl->local())) return redistribute(tensor, dual_spec(impl->spec()));
      return redistribute(tensor, Grid::of(*impl).dual());
    });
  }
}

/// The specs of all levels of a tensor, outermost first.
std::vector<SpecRef> specs_of_levels(const ShardTensorImpl* impl) {
  std::vector<SpecRef> specs;
  for (; impl; impl = impl_of(impl->local())) specs.push_back(impl->spec());
  return specs;
}

void remember_inputs(const OpInfo& info, const std::vector<SpecRef>& specs, const Stack& stack) {
  if (!at::GradMode::is_enabled()) return;
  const size_t returns = info.returned_argument.size();
  for (size_t i = stack.size() - returns; i < stack.size(); ++i) {
    for_each_tensor(stack[i], [&](const Tensor& tensor) {
      for (const auto& spec : specs) remember_input(tensor, spec);
    });
  }
}

}  // namespace

void function_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  detail::at_boundary([&] {
    if (detail::is_intercepted() && !detail::autocast_goes_first(op, keys)) [[unlikely]] {
      if (const auto handler = detail::find_handler(HandlerLevel::Function, op)) {
        return detail::run_handler(handler, op, stack);
      }
    }
    run_without_patch(op, keys, stack);
  });
}

void run_without_patch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto& info = op_info(op);
  const size_t begin = stack->size() - info.writes.size();
  if (info.is_mutating) {
    const auto written = written_kinds(info, *stack, begin);
    if (written.plain && !written.sharded) return run_plain(op, stack, begin);
    if (written.plain && call_for_each_kind(op, info, stack, begin)) return;
    check<SpecMismatch>(
        !written.plain, info.name,
        "got plain tensors and ShardTensors to write in one call; expected one kind. Call "
        "the op once for each.");
  }
  regroup(info, stack);
  if (info.needs_values) reduce_pending_sums(stack, begin);
  const auto* impl = first_sharded(*stack, begin);
  TORCH_INTERNAL_ASSERT(impl);
  std::vector<SpecRef> specs;
  if (info.remembers_input) specs = specs_of_levels(impl);
  if (!info.is_composite) promote_arguments(stack, begin, DeviceMesh(impl->mesh()));
  {
    const ViewReplayGuard guard(info.is_view);
    op.redispatchBoxed(below_function_level(keys), stack);
  }
  if (info.remembers_input) remember_inputs(info, specs, *stack);
}

namespace {

/// LibTorch asks this before set_data: a plain tensor cannot take over a ShardTensor's data nor the
/// reverse (without this kernel the answer is yes and the next use crashes).
bool has_compatible_type(const Tensor& self, const Tensor& from) {
  return (impl_of(self) != nullptr) == (impl_of(from) != nullptr) && self.dtype() == from.dtype() &&
         self.device() == from.device();
}

[[noreturn]] void refuse(const char* op) {
  detail::at_boundary([op] {
    refuse_op(op, "a ShardTensor",
              "a plain tensor: storage and strides of a sharded tensor are not its own");
  });
  TORCH_INTERNAL_ASSERT(false);
}
const Tensor& refuse_resize(const Tensor&, c10::SymIntArrayRef, std::optional<at::MemoryFormat>) {
  refuse("aten::resize_");
}
Tensor refuse_as_strided(
    const Tensor&, c10::SymIntArrayRef, c10::SymIntArrayRef,
    std::optional<c10::SymInt>) {  // NOLINT(performance-unnecessary-value-param)
  refuse("aten::as_strided");
}
Tensor& refuse_set(Tensor&, const Tensor&) { refuse("aten::set_"); }

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  check_libtorch();
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&function_fallback>());
}
TORCH_LIBRARY_IMPL(aten, DeferredInit, m) {
  m.impl("_has_compatible_shallow_copy_type", has_compatible_type);
  m.impl("resize_", refuse_resize);
  m.impl("as_strided", refuse_as_strided);
  m.impl("set_.source_Tensor", refuse_set);
}

}  // namespace
}  // namespace shard
