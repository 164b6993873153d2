// SPDX-License-Identifier: Apache-2.0
// Ops on images that need whole planes: local where a batch or channel dim is cut; a cut plane
// moves to the larger of these. A single plane is refused, since no rank could hold it.
#include <shard/patch.h>

#include <vector>

namespace shard {
namespace {

/// All tensors are (..., height, width) and alike but for these two.
std::optional<Layout> beside_planes(const OpCall& call) {
  const auto& first = call.tensor(0);
  Layout cut;
  for (const auto& argument : call.tensors()) {
    if (argument.is_shard() && !cut.is_shard()) cut = argument.layout();
  }
  if (!cut.is_shard() || cut.dim() < first.ndim() - 2) return cut;
  cut = cut_elsewhere(call, first.sizes(), {first.ndim() - 2, first.ndim() - 1});
  return cut.is_shard() ? std::optional(cut) : std::nullopt;
}

std::optional<Decision> by_planes(const OpCall& call) {
  const auto cut = beside_planes(call);
  if (!cut) return std::nullopt;
  Decision decision;
  decision.inputs.assign(call.tensors().size(), *cut);
  decision.outputs.push_back(*cut);
  return decision;
}

/// The same for (gradient, output_size, input_size, ...): the input's size is the local one.
std::optional<Decision> by_planes_of_input_size(const OpCall& call) {
  auto decision = by_planes(call);
  if (!decision) return decision;
  const auto& cut = decision->outputs[0];
  decision->arguments.emplace_back(2, local_sizes(call.integers(2), cut, call.mesh().rank()));
  return decision;
}

}  // namespace

SHARD_PATCH(whole_planes) {
  const auto add = [&](const std::string& op, const Rule& rule) {
    patch.rule("aten::" + op, rule)
        .shards("batch", "channels")
        .notes("a cut plane moves to these; refused for a single plane")
        .needs_values();
  };
  add("max_pool2d_with_indices_backward", by_planes);
  for (const char* op : {"_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"}) {
    add(op, by_planes);
    add(c10::str(op, "_backward"), by_planes_of_input_size);
  }
}

}  // namespace shard
