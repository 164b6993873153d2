// SPDX-License-Identifier: Apache-2.0
// NOTE [Gather fallback]
// With FallbackMode::Gather an op that no patch or rule covers runs on whole tensors on every rank,
// and its results are cut again like the first sharded input. Above autograd that is made of
// differentiable moves; below it the engine does the same with local tensors. Both go one level at
// a time, like everything else.
#include "dispatch/gather_fallback.h"

#include <shard/count_rows.h>
#include <shard/log.h>
#include <shard/patch.h>

#include <mutex>
#include <set>

#include "dispatch/function_fallback.h"
#include "dispatch/op_info.h"
#include "dispatch/stack.h"
#include "tensor/impl.h"

namespace shard {

void warn_that_it_gathers(const std::string& op) {
  if (log_rank() > 0) return;  // all ranks do the same
  static std::mutex mutex;
  static std::set<std::string> warned;
  const std::lock_guard lock(mutex);
  if (!warned.insert(op).second) return;
  log(LogLevel::Warning, "[", op,
      "] no patch or rule covers this call: it runs on gathered tensors (SHARD_FALLBACK=gather; "
      "this warning is given once an op).");
}

Layout layout_after_gather(const std::optional<Layout>& input, c10::IntArrayRef sizes) {
  if (!input || input->dim() >= static_cast<int64_t>(sizes.size())) return {};
  const auto& pieces = input->partition;
  const int64_t n = total_of(pieces);
  return sizes[static_cast<size_t>(input->dim())] == n ? *input : Layout();
}

void detail::gather_and_run(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                            torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  if (op_info(op).is_mutating) {
    refuse_op(op_info(op).name, "a call that its patch does not cover, of an op that writes",
              "an out-of-place op to gather");
  }
  warn_that_it_gathers(op_info(op).name);
  std::optional<Layout> cut;
  for (size_t i = stack->size() - schema.arguments().size(); i < stack->size(); ++i) {
    map_tensors((*stack)[i], [&](const at::Tensor& tensor) {
      if (!is_shard_tensor(tensor)) return tensor;
      const auto& spec = spec_of(tensor);
      if (spec->is_shard() && !cut) cut = Layout(*spec);
      return redistribute(tensor, spec->replicated());
    });
  }
  run_without_patch(op, keys, stack);
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    map_tensors((*stack)[i], [&](const at::Tensor& tensor) {
      if (!is_shard_tensor(tensor)) return tensor;
      const auto layout = layout_after_gather(cut, tensor.sizes());
      return redistribute(
          tensor, spec_of(tensor)->with(layout.placement, tensor.sizes(), layout.partition));
    });
  }
}

}  // namespace shard
