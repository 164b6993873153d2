// SPDX-License-Identifier: Apache-2.0
// Ops on images that need whole planes: local where a batch or channel dim is cut; a cut plane
// moves to the larger of these. A single plane is refused, since no rank could hold it.
#include <shard/patch.h>
#include <shard/primitives.h>

#include <algorithm>
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

/// LibTorch's kernels refuse images without channels: a rank that has none makes an empty result of
/// `sizes`, its own piece.
std::optional<Decision> by_planes(const OpCall& call, std::vector<int64_t> sizes) {
  const auto cut = beside_planes(call);
  if (!cut) return std::nullopt;
  Decision decision;
  decision.inputs.assign(call.tensors().size(), *cut);
  decision.outputs.push_back(*cut);
  sizes = local_sizes(sizes, *cut, call.mesh().rank());
  if (cut->is_shard() && sizes[static_cast<size_t>(cut->dim())] == 0) {
    decision.local = [sizes](c10::ArrayRef<c10::IValue> arguments) {
      return std::vector<c10::IValue>{empty_of_shape(arguments[0].toTensor(), sizes)};
    };
  }
  return decision;
}

/// max_pool2d_with_indices_backward(gradient, self, ...)
std::optional<Decision> gradient_of_pooling(const OpCall& call) {
  return by_planes(call, call.tensor(1).sizes().vec());
}

/// _upsample_*_aa(self, output_size, ...)
std::optional<Decision> scaling(const OpCall& call) {
  auto sizes = call.tensor(0).sizes().vec();
  const auto output = call.integers(1);
  std::copy(output.begin(), output.end(), sizes.end() - 2);
  return by_planes(call, sizes);
}

/// _upsample_*_aa_backward(gradient, output_size, input_size, ...): the input's size is the local
/// one.
std::optional<Decision> gradient_of_scaling(const OpCall& call) {
  const auto sizes = call.integers(2);
  auto decision = by_planes(call, sizes);
  if (!decision) return decision;
  const auto& cut = decision->outputs[0];
  decision->arguments.emplace_back(2, local_sizes(sizes, cut, call.mesh().rank()));
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
  add("max_pool2d_with_indices_backward", gradient_of_pooling);
  for (const char* op : {"_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"}) {
    add(op, scaling);
    add(c10::str(op, "_backward"), gradient_of_scaling);
  }
}

}  // namespace shard
