// SPDX-License-Identifier: Apache-2.0
// Ops that move elements between channels and space. Every output row of a shard is made of the
// shard's own rows once no boundary lies inside a group that moves together: pieces that do not end
// with a group are rounded to groups first.
#include <ATen/ops/pixel_shuffle.h>
#include <ATen/ops/pixel_unshuffle.h>
#include <shard/exchange.h>
#include <shard/patch.h>

#include <algorithm>

namespace shard {
namespace {

Decision keep(const Layout& input, const Layout& output) {
  Decision decision;
  decision.inputs.push_back(input);
  decision.outputs.push_back(output);
  return decision;
}

/// Groups of `group` rows of the sharded dim become one row.
Decision joining(const OpCall& call, int64_t group) {
  const Layout input = call.tensor(0).layout();
  const int64_t n = call.tensor(0).sizes()[static_cast<size_t>(input.dim())];
  check<SpecMismatch>(n % group == 0, call.name(), "got ", n, " rows along dim ", input.dim(),
                      "; expected a multiple of ", group,
                      ". Pad the input, or use another factor.");
  const Layout moved{input.placement, rounded_partition(input.partition, group)};
  Layout output = moved;
  for (auto& size : output.partition) size /= group;
  return keep(moved, output);
}

/// Every row of the sharded dim becomes `group` rows.
Decision splitting(const OpCall& call, int64_t group) {
  const Layout input = call.tensor(0).layout();
  Layout output = input;
  for (auto& size : output.partition) size *= group;
  return keep(input, output);
}

/// LibTorch's op gives an empty tensor back as it is, whatever the factor. (On an n-d mesh the
/// level below may be empty and whole, hence the sized rules.)
Decision with_sizes_of_nothing(Decision decision, const OpCall& call, c10::IntArrayRef whole) {
  const auto sizes = local_sizes(whole, decision.outputs[0], call.mesh().rank());
  const bool shuffles = call.name() == "aten::pixel_shuffle";
  decision.local = [sizes, shuffles](c10::ArrayRef<c10::IValue> arguments) {
    const at::Tensor x = arguments[0].toTensor();
    const int64_t factor = arguments[1].toInt();
    if (x.numel() == 0 && !is_shard_tensor(x)) return std::vector<c10::IValue>{x.new_empty(sizes)};
    return std::vector<c10::IValue>{shuffles ? at::pixel_shuffle(x, factor)
                                             : at::pixel_unshuffle(x, factor)};
  };
  return decision;
}

/// The factor, checked: LibTorch's own checks see local sizes.
int64_t factor_of(const OpCall& call) {
  const int64_t factor = call.integer(1);
  check<SpecMismatch>(factor > 0 && call.tensor(0).ndim() >= 3, call.name(), "got an input of ",
                      call.tensor(0).sizes(), " and the factor ", factor,
                      "; expected at least three dims and a positive factor. Correct them.");
  return factor;
}

std::optional<Decision> pixel_shuffle(const OpCall& call) {
  const auto& input = call.tensor(0);
  const int64_t factor = factor_of(call);
  const int64_t channels = input.ndim() - 3;
  const auto decision = input.shard_dim() < channels    ? keep(input.layout(), input.layout())
                        : input.shard_dim() == channels ? joining(call, factor * factor)
                                                        : splitting(call, factor);
  auto sizes = input.sizes().vec();
  sizes.end()[-3] /= factor * factor;
  sizes.end()[-2] *= factor;
  sizes.end()[-1] *= factor;
  return with_sizes_of_nothing(decision, call, sizes);
}

std::optional<Decision> pixel_unshuffle(const OpCall& call) {
  const auto& input = call.tensor(0);
  const int64_t factor = factor_of(call);
  const int64_t channels = input.ndim() - 3;
  const auto decision = input.shard_dim() < channels    ? keep(input.layout(), input.layout())
                        : input.shard_dim() == channels ? splitting(call, factor * factor)
                                                        : joining(call, factor);
  auto sizes = input.sizes().vec();
  sizes.end()[-3] *= factor * factor;
  sizes.end()[-2] /= factor;
  sizes.end()[-1] /= factor;
  return with_sizes_of_nothing(decision, call, sizes);
}

std::optional<Decision> channel_shuffle(const OpCall& call) {
  const auto& input = call.tensor(0);
  Layout layout = input.layout();
  if (layout.is_shard() && layout.dim() == 1) layout = cut_elsewhere(call, input.sizes(), {1});
  return keep(layout, layout);
}

}  // namespace

SHARD_PATCH(pixel_shuffle) {
  const char* const note =
      "boundaries inside a group of rows (channels) that moves are moved first";
  patch.sized_rule("aten::pixel_shuffle", pixel_shuffle).shards("any dim").notes(note);
  patch.sized_rule("aten::pixel_unshuffle", pixel_unshuffle).shards("any dim").notes(note);
  for (const char* op : {"aten::channel_shuffle", "aten::native_channel_shuffle"}) {
    patch.rule(op, channel_shuffle)
        .shards("any dim")
        .notes("channels: one all-to-all to another dim");
  }
}

}  // namespace shard
