// SPDX-License-Identifier: Apache-2.0
#include "dispatch/split_lists.h"

#include <optional>
#include <vector>

#include "tensor/impl.h"

namespace shard {
namespace {

using c10::IValue;

/// Whether the tensors that are written at each place of the lists are sharded; nothing when they
/// differ at one place, or when something else than lists of one length is written.
std::optional<std::vector<bool>> sharded_places(const OpInfo& info,
                                                c10::ArrayRef<IValue> arguments) {
  std::optional<std::vector<bool>> places;
  for (size_t i = 0; i < info.writes.size(); ++i) {
    if (!info.writes[i]) continue;
    if (!arguments[i].isTensorList()) return std::nullopt;
    const auto tensors = arguments[i].toTensorVector();
    if (tensors.empty()) continue;  // fused optimizers have lists that may be left out
    std::vector<bool> these;
    for (const at::Tensor& tensor : tensors) these.push_back(impl_of(tensor) != nullptr);
    if (places && *places != these) return std::nullopt;
    places = std::move(these);
  }
  return places;
}

/// The elements of a list at the places that are (not) sharded; other arguments as they are.
IValue part_of(const IValue& argument, const std::vector<bool>& places, bool sharded) {
  if (!argument.isList() || argument.toListRef().size() != places.size()) return argument;
  const auto list = argument.toList();
  c10::impl::GenericList part(list.elementType());
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] == sharded) part.push_back(list.get(i));
  }
  return part;
}

}  // namespace

bool call_for_each_kind(const c10::OperatorHandle& op, const OpInfo& info, torch::jit::Stack* stack,
                        size_t begin) {
  if (!op.schema().returns().empty()) return false;
  const std::vector<IValue> arguments(stack->begin() + static_cast<std::ptrdiff_t>(begin),
                                      stack->end());
  const auto places = sharded_places(info, arguments);
  if (!places) return false;
  stack->resize(begin);
  for (const bool sharded : {false, true}) {
    torch::jit::Stack call;
    for (const IValue& argument : arguments) call.push_back(part_of(argument, *places, sharded));
    op.callBoxed(&call);
  }
  return true;
}

}  // namespace shard
