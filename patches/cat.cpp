// SPDX-License-Identifier: Apache-2.0
// cat and stack. Along another dim than the sharded one they are local, after lining the inputs up.
// Along the sharded dim every rank keeps as many rows as it had of all inputs; they move in one
// exchange unless they already lie in order.
#include <ATen/ops/cat.h>
#include <shard/count_rows.h>
#include <shard/patch.h>

namespace shard {
namespace {

int64_t common_ndim(const OpCall& call) {
  int64_t ndim = 0;
  for (const auto& argument : call.tensors()) ndim = std::max(ndim, argument.ndim());
  return ndim;
}

/// The layout of the first sharded input; legacy empty 1-d inputs of cat do not count.
Layout common_layout(const OpCall& call) {
  const int64_t ndim = common_ndim(call);
  for (const auto& argument : call.tensors()) {
    if (argument.is_shard() && argument.ndim() == ndim) return argument.layout();
  }
  return {};
}

Decision line_up(const OpCall& call, const Layout& layout, const Layout& output) {
  Decision decision;
  const int64_t ndim = common_ndim(call);
  for (const auto& argument : call.tensors()) {
    const bool legacy_empty = argument.ndim() == 1 && argument.tensor.numel() == 0 && ndim != 1;
    decision.inputs.push_back(legacy_empty ? Layout() : layout);
  }
  decision.outputs.push_back(output);
  return decision;
}

/// The global rows that `rank` holds of all inputs, one range an input.
std::vector<Rows> rows_held(const std::vector<Partition>& inputs, int64_t rank) {
  std::vector<Rows> held;
  int64_t begin = 0;
  for (const auto& partition : inputs) {
    const int64_t first = begin + offset_of(partition, rank);
    held.push_back({first, first + partition[static_cast<size_t>(rank)]});
    begin += total_of(partition);
  }
  return held;
}

bool lie_in_order(const std::vector<std::vector<Rows>>& held, const Partition& target) {
  for (size_t rank = 0; rank < held.size(); ++rank) {
    int64_t row = offset_of(target, static_cast<int64_t>(rank));
    for (const Rows& rows : held[rank]) {
      if (rows.size() == 0) continue;
      if (rows.begin != row) return false;
      row = rows.end;
    }
  }
  return true;
}

Decision cat_along_the_shard(const OpCall& call, int64_t dim) {
  const int64_t ranks = call.mesh().size();
  Decision decision;
  std::vector<Partition> inputs;
  for (const auto& argument : call.tensors()) {
    Layout layout;  // of a legacy empty input
    if (argument.ndim() > dim) {
      layout = argument.shard_dim() == dim
                   ? argument.layout()
                   : Layout(Shard(dim),
                            even_partition(argument.sizes()[static_cast<size_t>(dim)], ranks));
      inputs.push_back(layout.partition);
    }
    decision.inputs.push_back(layout);
  }
  Partition target(static_cast<size_t>(ranks), 0);
  std::vector<std::vector<Rows>> held;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    held.push_back(rows_held(inputs, rank));
    for (const Rows& rows : held.back()) target[static_cast<size_t>(rank)] += rows.size();
  }
  decision.outputs.emplace_back(Shard(dim), target);
  if (lie_in_order(held, target)) return decision;
  decision.local = [=, mesh = call.mesh()](c10::ArrayRef<c10::IValue> arguments) {
    const auto own = at::cat(arguments[0].toTensorVector(), dim);
    return std::vector<c10::IValue>{move_rows(own, dim, held, target, mesh)};
  };
  return decision;
}

std::optional<Decision> cat(const OpCall& call) {
  const Layout layout = common_layout(call);
  const int64_t dim = call.dim(1, common_ndim(call));
  if (layout.is_shard() && layout.dim() == dim) return cat_along_the_shard(call, dim);
  return line_up(call, layout, layout);
}

std::optional<Decision> stack(const OpCall& call) {
  const Layout layout = common_layout(call);
  const int64_t dim = call.dim(1, call.tensor(0).ndim() + 1);
  return line_up(
      call, layout,
      layout.is_shard() && dim <= layout.dim() ? layout.moved_to(layout.dim() + 1) : layout);
}

}  // namespace

SHARD_PATCH(cat) {
  patch.rule("aten::cat", cat).shards("any dim");
  patch.rule("aten::stack", stack).shards("any dim");
}

}  // namespace shard
