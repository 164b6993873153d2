// SPDX-License-Identifier: Apache-2.0
// Ops that make a tensor from the shape of another. Every rank allocates its own part only.
#include <shard/memory_order.h>
#include <shard/patch.h>

namespace shard {
namespace {

/// The layout that a new tensor of `sizes` gets: that of the input of the op whose backward is
/// running (NOTE [Remembered inputs]), that of self where the sizes agree, else Replicate.
Layout layout_of_new(const OpCall& call, const std::vector<int64_t>& sizes) {
  const auto& self = call.tensor(0);
  if (const auto remembered = remembered_layout(call.mesh(), sizes))
    return remembered->is_shard() ? *remembered : Layout();
  return self.is_shard() && self.sizes() == c10::IntArrayRef(sizes) ? self.layout() : Layout();
}

Decision decide(const OpCall& call, const Layout& layout, const std::vector<int64_t>& sizes) {
  Decision decision;
  decision.inputs.push_back(call.tensor(0).layout());  // values are not read
  decision.outputs.push_back(layout);
  decision.arguments.emplace_back(1, local_sizes(sizes, layout, call.mesh().rank()));
  return decision;
}

std::optional<Decision> new_of_size(const OpCall& call) {
  const auto sizes = call.integers(1);
  return decide(call, layout_of_new(call, sizes), sizes);
}

std::optional<Decision> new_of_size_and_strides(const OpCall& call) {
  const auto sizes = call.integers(1);
  auto decision = decide(call, layout_of_new(call, sizes), sizes);
  const auto local = decision.arguments[0].second.toIntVector();
  const Shape strides = strides_in_order(local, call.integers(2));
  decision.arguments.emplace_back(2, std::vector<int64_t>(strides.begin(), strides.end()));
  return decision;
}

}  // namespace

SHARD_PATCH(creation) {
  for (const char* op : {"empty_like", "zeros_like", "ones_like", "full_like"}) {
    patch.sized_rule(std::string("aten::") + op, like_input()).shards("any dim");
  }
  for (const char* op : {"new_empty", "new_zeros", "new_ones", "new_full"}) {
    patch.sized_rule(std::string("aten::") + op, new_of_size)
        .shards("any dim")
        .notes("like self where the sizes agree");
  }
  patch.sized_rule("aten::new_empty_strided", new_of_size_and_strides).shards("any dim");
}

}  // namespace shard
