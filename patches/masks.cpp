// SPDX-License-Identifier: Apache-2.0
// Masks: where they are set, the elements that they pick, and elements put where they are set. Each
// rank does so for its part, see NOTE [Counted results]; gradients are LibTorch's own, made of the
// same ops.
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <shard/counted_patch.h>
#include <shard/patch.h>
#include <shard/route.h>

#include <algorithm>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

/// nonzero(self): (count, ndim), row by row.
std::optional<Decision> nonzero(const OpCall& call) {
  const Layout rows = outermost_cut(call.tensor(0), call.mesh());
  Decision decision;
  decision.inputs.push_back(rows);
  decision.outputs.push_back(rows.is_shard() ? counted_along(0) : Layout());
  if (!rows.is_shard()) return decision;
  decision.local = [dim = rows.dim(), offset = offset_of(rows.partition, call.mesh().rank())](
                       c10::ArrayRef<IValue> arguments) {
    const Tensor places = at::nonzero(arguments[0].toTensor());
    places.select(1, dim).add_(offset);
    return std::vector<IValue>{places};
  };
  return decision;
}

/// masked_select(self, mask)
std::optional<Decision> masked_select(const OpCall& call) {
  const auto& self = call.tensor(0);
  const auto& mask = call.tensor(1);
  const auto cut = broadcast_cut(self, mask, call.mesh());
  Decision decision;
  decision.inputs = {cut.of(self), cut.of(mask)};
  decision.outputs.push_back(cut.layout.is_shard() ? counted_along(0) : Layout());
  return decision;
}

// ---- elements for the places where a mask is set, in their order

/// How a list in the order of a tensor's elements lies that is cut along its outermost dim.
Layout as_list(const Layout& rows, c10::IntArrayRef sizes) {
  if (!rows.is_shard()) return {};
  Layout list = rows.moved_to(0);
  const int64_t inner = c10::multiply_integers(sizes.slice(static_cast<size_t>(rows.dim()) + 1));
  for (auto& piece : list.partition) piece *= inner;
  return list;
}

/// masked_scatter_(self, mask, source): the mask broadcasts to self; the source is a list.
std::optional<Decision> masked_scatter_in_place(const OpCall& call) {
  const auto& self = call.tensor(0);
  const auto& mask = call.tensor(1);
  const auto& source = call.tensor(2);
  const auto cut = broadcast_cut(self, mask, call.mesh());
  check<SpecMismatch>(self.sizes() == c10::IntArrayRef(cut.sizes), call.name(), "got a mask of ",
                      mask.sizes(), " for a tensor of ", self.sizes(),
                      "; expected one that broadcasts to it.");
  const Layout rows = source.is_shard() ? outermost_cut(source, call.mesh()) : Layout();
  Decision decision;
  decision.inputs = {cut.of(self), cut.of(mask), rows};
  decision.outputs.push_back(cut.layout);
  if (!cut.layout.is_shard() || call.mesh().size() == 1) return decision;
  decision.local = [=, list = as_list(rows, source.sizes()), given = source.tensor.numel(),
                    name = call.name(), mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    Tensor written = arguments[0].toTensor();
    const Tensor is_set = arguments[1].toTensor().expand(written.sizes());
    const Partition counts = count_rows(count_set(is_set), mesh);
    check<SpecMismatch>(total_of(counts) <= given, name, "got a source of ", given,
                        " elements for a mask that is set at ", total_of(counts),
                        " places; expected as many at least.");
    const Tensor elements = arguments[2].toTensor().reshape({-1});
    written.masked_scatter_(is_set, take_rows(elements, 0, list, counts, mesh));
    return std::vector<IValue>{written};
  };
  return decision;
}

Tensor masked_scatter(const Tensor& self, const Tensor& mask, const Tensor& source) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto& mesh = mesh_of(is_shard_tensor(self) ? self : is_shard_tensor(mask) ? mask : source);
  const auto sizes = at::infer_size(self.sizes(), mask.sizes());
  return promote(self, mesh)
      .expand(sizes)
      .clone(c10::MemoryFormat::Contiguous)
      .masked_scatter_(mask, source);
}

/// Of as many elements as all ranks together have, and zeros behind them: those of `piece`.
Tensor with_zeros_behind(const Tensor& own, const Layout& piece, const DeviceMesh& mesh) {
  const Partition held = count_rows(own.size(0), mesh);
  Partition taken = piece.partition;
  for (int64_t left = total_of(held); auto& size : taken) {
    const int64_t whole = size;
    size = std::min(whole, left);
    left -= size;
  }
  const Tensor elements = take_rows(own, 0, Layout(Shard(0), held), taken, mesh);
  const int64_t wanted = piece.partition[static_cast<size_t>(mesh.rank())];
  return at::cat({elements, at::zeros({wanted - elements.size(0)}, elements.options())});
}

/// masked_scatter_backward(grad_output, mask, sizes): the gradient of a source of these sizes.
std::optional<Decision> masked_scatter_backward(const OpCall& call) {
  const auto cut = broadcast_cut(call.tensor(0), call.tensor(1), call.mesh());
  const auto sizes = call.integers(2);
  Decision decision;
  decision.inputs = {cut.of(call.tensor(0)), cut.of(call.tensor(1))};
  if (!cut.layout.is_shard()) {
    decision.outputs.emplace_back();
    return decision;
  }
  if (sizes.empty()) {  // one rank has the one element
    decision.outputs.emplace_back(Partial(), Partition());
    decision.local = [](c10::ArrayRef<IValue> arguments) {
      const Tensor picked = at::masked_select(arguments[0].toTensor(), arguments[1].toTensor());
      return std::vector<IValue>{plain_numbers(picked).sum()};
    };
    return decision;
  }
  const int64_t dim = outermost_dim(sizes);
  const Layout rows(Shard(dim),
                    even_partition(sizes[static_cast<size_t>(dim)], call.mesh().size()));
  decision.outputs.push_back(rows);
  decision.local = [rows, list = as_list(rows, sizes),
                    own = local_sizes(sizes, rows, call.mesh().rank()),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor picked = at::masked_select(arguments[0].toTensor(), arguments[1].toTensor());
    return std::vector<IValue>{with_zeros_behind(plain_numbers(picked), list, mesh).view(own)};
  };
  return decision;
}

}  // namespace

SHARD_PATCH(masks) {
  const char* const moves = "moves to the outermost dim; the ranks tell each other their counts";
  patch.rule("aten::nonzero", nonzero).shards("any dim").notes(moves).needs_values();
  patch.rule("aten::masked_select", masked_select).shards("any dim").notes(moves).needs_values();
  patch.rule("aten::masked_scatter_", masked_scatter_in_place).shards("any dim").notes(moves);
  patch.dispatch<at::_ops::masked_scatter>(masked_scatter).shards("any dim").notes(moves);
  patch.rule("aten::masked_scatter_backward", masked_scatter_backward)
      .shards("any dim")
      .notes(moves)
      .needs_values();
}

}  // namespace shard
