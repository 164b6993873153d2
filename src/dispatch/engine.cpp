// SPDX-License-Identifier: Apache-2.0
#include "dispatch/engine.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <shard/comm_counter.h>
#include <shard/count_rows.h>
#include <shard/describe.h>
#include <shard/error.h>
#include <shard/memory_order.h>
#include <shard/patch.h>
#include <torch/library.h>

#include <algorithm>
#include <sstream>

#include "dispatch/gather_fallback.h"
#include "dispatch/handler.h"
#include "dispatch/level_scope.h"
#include "dispatch/op_info.h"
#include "dispatch/stack.h"
#include "tensor/impl.h"
#include "tensor/redistribute.h"
#include "tensor/replicated_check.h"

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

/// One pass of an op through the engine.
class Execution {
 public:
  Execution(const c10::OperatorHandle& op, const OpInfo& info, const Rule& rule, Stack* stack)
      : op_(op),
        info_(info),
        rule_(rule),
        stack_(stack),
        begin_(stack->size() - info.writes.size()) {
    collect_tensors();
  }

  void run() {
    std::optional<detail::Explanation> explanation;
    if (explains()) {
      explanation.emplace(info_.name, rule_ ? "rule" : "no rule");
      for (const auto& argument : tensors_) explanation->input(argument.tensor);
    }
    check_marked_copies();
    for (const auto& argument : tensors_) {
      if (!argument.spec) check_replicated(argument.tensor, mesh_);
    }
    decision_ = decide();
    if (explanation) explain_moves(*explanation);
    is_copy_ |= decision_.is_copy;
    if (info_.is_view || info_.changes_metadata || has_ambiguous_order()) find_global_strides();
    auto results = run_levels_below();
    if (gathers_) cut_again(results);
    for (const auto& written : written_) finish_write(written);
    torch::jit::drop(*stack_, stack_->size() - begin_);
    wrap_results(results);
    if (explanation) explain_outputs(*explanation);
  }

 private:
  struct Written {
    Tensor tensor;
    Tensor local;   // that the op wrote
    Layout layout;  // of that local
  };

  void collect_tensors();
  void check_marked_copies();
  Decision decide();
  Decision gather();
  void cut_again(std::vector<IValue>& results);
  void explain_moves(detail::Explanation& explanation) const;
  void explain_outputs(detail::Explanation& explanation) const;
  bool all_replicated() const;
  std::string describe_inputs() const;
  void localize();
  Tensor localize(const TensorArgument& argument, const Layout& wanted);
  std::vector<IValue> run_levels_below();
  std::vector<IValue> run_local();
  void finish_write(const Written& written);
  void wrap_results(const std::vector<IValue>& results);
  Tensor wrap_result(const Tensor& local, size_t index);
  SpecRef spec_for(const Tensor& local, const Layout& layout) const;
  bool has_ambiguous_order() const;
  bool has_counted_sizes() const;
  void find_global_strides();
  void take_global_strides(ShardTensorImpl* impl, size_t index) const;

  const c10::OperatorHandle& op_;
  const OpInfo& info_;
  const Rule& rule_;
  Stack* stack_;
  size_t begin_;
  DeviceMesh mesh_;
  c10::SmallVector<TensorArgument, 4> tensors_;
  std::vector<IValue> originals_;  // of written arguments, else None
  std::vector<Written> written_;
  Decision decision_;
  std::vector<std::vector<int64_t>> global_strides_;  // of every result
  int64_t base_version_ = -1;                         // of the first tensor argument
  bool gathers_ = false;                              // NOTE [Gather fallback]
  bool is_copy_ = false;  // a view whose input had to move, or a view of such a copy
};

void Execution::collect_tensors() {
  for (size_t i = 0; i < info_.writes.size(); ++i) {
    for_each_tensor((*stack_)[begin_ + i], [&](const Tensor& tensor) {
      const auto* impl = impl_of(tensor);
      if (impl && !mesh_.defined()) mesh_ = impl->mesh();
      if (impl && !(impl->mesh().layout() == mesh_.layout() &&
                    impl->mesh().root().layout() == mesh_.root().layout())) {
        raise<SpecMismatch>(info_.name, "got tensors on the meshes ", mesh_.layout(), " and ",
                            impl->mesh().layout(), "; expected one mesh.");
      }
      tensors_.push_back({i, tensor, impl ? impl->spec().get() : nullptr, info_.writes[i]});
    });
  }
}

void Execution::check_marked_copies() {
  for (const auto& argument : tensors_) {
    const auto* impl = impl_of(argument.tensor);
    if (!impl || argument.tensor.is_inference()) continue;
    if (base_version_ < 0) base_version_ = static_cast<int64_t>(argument.tensor._version());
    if (impl->copied_at_version() < 0) continue;
    check<SpecMismatch>(
        !argument.is_written, info_.name,
        "got a view that is a copy (it needed communication) to write; expected a true "
        "view. clone() it, or write the base.");
    check<SpecMismatch>(
        static_cast<int64_t>(argument.tensor._version()) == impl->copied_at_version(), info_.name,
        "got a view that is a copy, and its base was modified after it was "
        "made; expected an unmodified base. Make the view again.");
    is_copy_ |= info_.is_view;
  }
}

bool Execution::all_replicated() const {
  return std::all_of(tensors_.begin(), tensors_.end(), [](const TensorArgument& argument) {
    return !argument.spec || argument.spec->is_replicate();
  });
}

std::string Execution::describe_inputs() const {
  std::ostringstream text;
  const TensorArgument* first = nullptr;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    text << (i ? ", " : "");
    if (!tensors_[i].spec) {
      text << "plain " << tensors_[i].sizes();
    } else {
      text << *tensors_[i].spec;
      if (!first) first = &tensors_[i];
    }
  }
  if (first) text << " (that is, " << describe(first->tensor) << ")";
  return text.str();
}

Decision Execution::decide() {
  if (all_replicated() && !info_.reads_sizes) {
    Decision decision;
    decision.inputs.resize(tensors_.size());
    decision.outputs.resize(1);
    return decision;
  }
  const OpCall call(info_.name, c10::ArrayRef<IValue>(*stack_).slice(begin_), tensors_, mesh_);
  std::optional<Decision> decision;
  if (rule_) decision = rule_(call);
  if (!decision && mesh_.size() == 1) {  // one rank: every placement is the whole tensor
    decision.emplace();
    for (const auto& argument : tensors_) decision->inputs.push_back(argument.layout());
    decision->outputs.resize(1);
  }
  if (!decision && fallback_mode() == FallbackMode::Gather && !info_.is_mutating &&
      !info_.is_view) {
    return gather();
  }
  if (!decision) {
    refuse_op(info_.name, describe_inputs(),
              rule_ ? "placements that this op's rule covers" : "an op with a rule or patch");
  }
  return *std::move(decision);
}

Decision Execution::gather() {
  warn_that_it_gathers(info_.name);
  gathers_ = true;
  Decision decision;
  decision.inputs.resize(tensors_.size());  // Replicate
  return decision;
}

/// NOTE [Gather fallback]
void Execution::cut_again(std::vector<IValue>& results) {
  std::optional<Layout> input;
  for (const auto& argument : tensors_) {
    if (argument.is_shard() && !input) input = argument.layout();
  }
  for (auto& result : results) {
    map_tensors(result, [&](const Tensor& whole) {
      const auto layout = layout_after_gather(input, whole.sizes());
      decision_.outputs.push_back(layout);
      const auto from = ShardTensorSpec::make(mesh_.layout_ref(), Replicate(), whole.sizes());
      const auto to = from->with(layout.placement, whole.sizes(), layout.partition);
      return redistribute_local(whole, *from, *to, mesh_);
    });
  }
}

void Execution::explain_moves(detail::Explanation& explanation) const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Layout wanted = decision_.inputs[i];
    if (!tensors_[i].spec || wanted == tensors_[i].layout()) continue;
    std::ostringstream text;
    text << "input " << i << " moved from " << tensors_[i].spec->placement() << " to "
         << wanted.placement << (gathers_ ? " (no rule covers it)" : " as the rule asks");
    if (wanted.placement == tensors_[i].spec->placement()) text << ", other pieces";
    explanation.note(text.str());
  }
}

void Execution::explain_outputs(detail::Explanation& explanation) const {
  for (size_t i = begin_; i < stack_->size(); ++i) {
    for_each_tensor((*stack_)[i], [&](const Tensor& tensor) { explanation.output(tensor); });
  }
}

/// NOTE [One memory order on all ranks]: of the levels inside, after a move of this one.
Tensor with_levels_in_order(const Tensor& moved) {
  Tensor result = moved;
  for (const auto* level = impl_of(moved); level; level = impl_of(level->local())) {
    result = in_common_order(result, *level->spec());
  }
  return result;
}

Tensor Execution::localize(const TensorArgument& argument, const Layout& wanted) {
  const auto* impl = impl_of(argument.tensor);
  if (!impl) {
    if (wanted.is_replicate()) return argument.tensor;
    const auto from = ShardTensorSpec::make(mesh_.layout_ref(), Replicate(), argument.sizes());
    const auto to = from->with(wanted.placement, argument.sizes(), wanted.partition);
    return redistribute_local(argument.tensor, *from, *to, mesh_);
  }
  if (wanted == Layout(*impl->spec())) {
    return info_.changes_metadata && argument.is_written ? local_alias(impl->local())
                                                         : impl->local();
  }
  check<SpecMismatch>(!argument.is_written || !info_.changes_metadata, info_.name,
                      "got an in-place view of ", *impl->spec(),
                      " that needs communication; expected a view of this rank's part. Use the "
                      "out-of-place op.");
  is_copy_ |= info_.is_view && mesh_.size() > 1;
  const auto to = impl->spec()->with(wanted.placement, argument.sizes(), wanted.partition);
  return with_levels_in_order(redistribute_local(impl->local(), *impl->spec(), *to, mesh_));
}

void Execution::localize() {
  originals_.resize(info_.writes.size());
  size_t next = 0;
  for (size_t i = 0; i < info_.writes.size(); ++i) {
    auto& value = (*stack_)[begin_ + i];
    if (info_.writes[i]) originals_[i] = value;
    map_tensors(value, [&](const Tensor&) {
      const auto& argument = tensors_[next];
      Tensor local = localize(argument, decision_.inputs[next]);
      ++next;
      if (argument.is_written) {
        written_.push_back({argument.tensor, local, decision_.inputs[next - 1]});
      }
      return local;
    });
  }
  for (auto& [index, value] : decision_.arguments) (*stack_)[begin_ + index] = std::move(value);
}

std::vector<IValue> Execution::run_levels_below() {
  const bool has_levels_below =
      std::any_of(tensors_.begin(), tensors_.end(), [](const TensorArgument& argument) {
        return argument.spec && impl_of(impl_of(argument.tensor)->local());
      });
  if (!has_levels_below) {
    localize();
    return run_local();
  }
  const std::vector<IValue> arguments(stack_->begin() + static_cast<std::ptrdiff_t>(begin_),
                                      stack_->end());
  const OpCall call(info_.name, arguments, tensors_, mesh_);
  const detail::LevelScope scope(call);
  localize();
  return run_local();
}

std::vector<IValue> Execution::run_local() {
  if (decision_.local) return decision_.local(c10::ArrayRef<IValue>(*stack_).slice(begin_));
  Stack local(stack_->begin() + static_cast<std::ptrdiff_t>(begin_), stack_->end());
  op_.callBoxed(&local);
  return local;
}

/// NOTE [Versions of locals]
/// An op that saved a local tensor checks the local's version, not the wrapper's: every local
/// written is bumped, else its backward would silently use overwritten values.
void Execution::finish_write(const Written& written) {
  auto* impl = impl_of(written.tensor);
  Tensor local = written.local;
  if (impl && written.layout != Layout(*impl->spec())) {  // it was moved for the op: bring it back
    const auto& to = impl->spec();
    const auto from =
        to->with(written.layout.placement, to->global_shape(), written.layout.partition);
    const Tensor moved = redistribute_local(local, *from, *to, mesh_);
    local = impl->local();
    if (!moved.is_same(local)) local.copy_(moved);
  }
  if (!local.is_inference()) local.unsafeGetTensorImpl()->bump_version();
  if (!impl) return;
  if (info_.changes_metadata) {
    impl->set_local(local, spec_for(local, decision_.outputs[0]));
    take_global_strides(impl, 0);
    return;
  }
  check<SpecMismatch>(local.sizes() == c10::IntArrayRef(impl->spec()->local_shape(mesh_.rank())),
                      info_.name, "got an output tensor of ", written.tensor.sizes(),
                      " that would have to be resized; expected one of the result's size.");
}

SpecRef Execution::spec_for(const Tensor& local, const Layout& layout) const {
  Shape shape(local.sizes().begin(), local.sizes().end());
  if (layout.is_shard()) {
    auto& size = shape[static_cast<size_t>(layout.dim())];
    const int64_t mine = layout.partition[static_cast<size_t>(mesh_.rank())];
    TORCH_INTERNAL_ASSERT(size == mine, info_.name, ": the rule expected ", mine,
                          " rows along dim ", layout.dim(), ", the local result has ",
                          local.sizes());
    size = offset_of(layout.partition, static_cast<int64_t>(layout.partition.size()));
  }
  for (const auto& argument : tensors_) {  // most results lie like an input: share its spec
    const auto* impl = impl_of(argument.tensor);
    if (impl && impl->spec()->global_shape() == c10::IntArrayRef(shape) &&
        impl->spec()->placement() == layout.placement &&
        impl->spec()->partition() == layout.partition) {
      return impl->spec();
    }
  }
  return ShardTensorSpec::make(mesh_.layout_ref(), layout.placement, shape, layout.partition);
}

/// NOTE [Strides of views]
/// A view has the strides that LibTorch gives to a view of the wrapper. Those of the local views
/// would differ between ranks where a slice takes all of one shard and a part of the next, or where
/// a shard has one row only, and with them what contiguous() and reshape() do: an alias here, a
/// copy there.
///
/// NOTE [One memory order on all ranks]: the same for new results where the locals cannot tell.
bool Execution::has_ambiguous_order() const {
  if (info_.is_mutating || has_counted_sizes()) return false;
  const bool is_ordered =
      std::any_of(tensors_.begin(), tensors_.end(),
                  [](const TensorArgument& t) { return t.spec && !t.tensor.is_contiguous(); });
  return is_ordered && std::any_of(tensors_.begin(), tensors_.end(), [](const TensorArgument& t) {
           return t.spec && has_thin_pieces(*t.spec);
         });
}

/// Of those that may, only indexing by lists alone has sizes that are known without the values.
bool Execution::has_counted_sizes() const {
  return info_.has_counted_sizes &&
         (tensors_.size() < 2 ||
          std::any_of(tensors_.begin() + 1, tensors_.end(), [](const TensorArgument& t) {
            return t.tensor.scalar_type() == at::kBool || t.tensor.scalar_type() == at::kByte;
          }));
}

void Execution::find_global_strides() {
  Stack call(stack_->begin() + static_cast<std::ptrdiff_t>(begin_), stack_->end());
  for (auto& argument : call) {
    map_tensors(argument, [](const Tensor& t) {
      return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta));
    });
  }
  try {
    op_.callBoxed(&call);
  } catch (const c10::Error&) {
    // Not allowed. Those of some local tensors might be: they shall not decide, rank by rank.
    if (info_.is_view || info_.changes_metadata) throw;
    return;
  }
  for (const auto& result : call) {
    for_each_tensor(result,
                    [&](const Tensor& view) { global_strides_.push_back(view.strides().vec()); });
  }
}

void Execution::take_global_strides(ShardTensorImpl* impl, size_t index) const {
  if (index >= global_strides_.size()) return;
  impl->set_sizes_and_strides(impl->spec()->global_shape(), global_strides_[index]);
}

Tensor Execution::wrap_result(const Tensor& local, size_t index) {
  const auto& outputs = decision_.outputs;
  const auto& decided = outputs[std::min(index, outputs.size() - 1)];
  if (decided.is_shard() && is_cut_along(local, decided.dim())) [[unlikely]] {
    is_copy_ |= info_.is_view;
    return wrap_result(uncut(local, decided.dim()), index);
  }
  std::optional<Layout> counted;
  if (decided.is_shard() && decided.partition.empty()) [[unlikely]] {  // NOTE [Counted results]
    counted = Layout(decided.placement, count_rows(local.size(decided.dim()), mesh_));
  }
  const Layout& layout = counted ? *counted : decided;
  if (auto* inner = impl_of(local); inner && info_.is_view && inner->copied_at_version() >= 0) {
    is_copy_ = true;  // autograd follows the outermost level's versions: the mark belongs there
    inner->mark_copy(-1);
  }
  const bool is_alias = info_.is_view && !is_copy_;
  const auto spec = spec_for(local, layout);
  const bool has_order = !info_.is_view && index < global_strides_.size();
  Tensor own = local;
  if (has_order) own = in_order(local, global_strides_[index]);
  if (!is_alias && !has_order) own = in_common_order(local, *spec);
  Tensor result = wrap(own, mesh_, spec);
  auto* impl = impl_of(result);
  if (is_alias || has_order) take_global_strides(impl, index);
  if (is_copy_ && info_.is_view) impl->mark_copy(base_version_);
  return result;
}

void Execution::wrap_results(const std::vector<IValue>& results) {
  size_t index = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (const int argument = info_.returned_argument[i]; argument >= 0) {
      stack_->push_back(std::move(originals_[static_cast<size_t>(argument)]));
      continue;
    }
    IValue value = results[i];
    map_tensors(value, [&](const Tensor& local) { return wrap_result(local, index++); });
    stack_->push_back(std::move(value));
  }
}

}  // namespace

void dispatch_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto& info = op_info(op);
  detail::HandlerRef handler;
  if (detail::is_intercepted()) [[unlikely]] {
    handler = detail::find_handler(HandlerLevel::Dispatch, op);
  }
  if (handler && !handler->rule) return detail::run_handler(handler, op, stack);
  if (info.is_composite && !handler) {
    // InferenceMode strips the autograd keys, so composite ops arrive whole: decompose them here.
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDispatchKey),
                       stack);
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  const CommLabel label(info.name.c_str());
  Execution(op, info, handler ? handler->rule : info.rule, stack).run();
}

TORCH_LIBRARY_IMPL(_, Fake, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&dispatch_fallback>());
}

}  // namespace shard
