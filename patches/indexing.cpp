// SPDX-License-Identifier: Apache-2.0
// Reading and writing by index along one dim or several, every other dim index by index. By one
// index along the cut dim, the index is cut too and rows travel between their owners and those that
// name them (RowRoute); in the other cases a shard along an indexed dim moves to another one first.
#include <ATen/ops/where.h>
#include <shard/patch.h>
#include <shard/route.h>

#include <algorithm>

namespace shard {
namespace {

/// x[indices]: which dims of x are indexed, and where the other ones lie in the result.
struct Indexing {
  std::vector<int64_t> dims;
  int64_t index_ndim = 0;  ///< of the indices, broadcast
  bool is_adjacent = true;

  explicit Indexing(const OpCall& call) {
    const auto indices = call.argument(1).toOptionalTensorList();
    for (size_t i = 0; i < indices.size(); ++i) {
      const std::optional<at::Tensor> index = indices.get(i);
      if (!index || !index->defined()) continue;
      check<UndeterminedShardingError>(
          index->scalar_type() != at::kBool && index->scalar_type() != at::kByte, call.name(),
          "got a mask of ", index->sizes(),
          "; expected lists of indices: how many elements a mask picks is not known from sizes. "
          "Use "
          "where(), or multiply by the mask.");
      dims.push_back(static_cast<int64_t>(i));
      index_ndim = std::max(index_ndim, index->dim());
      is_adjacent &= dims.back() == dims.front() + static_cast<int64_t>(dims.size()) - 1;
    }
  }
  bool has(int64_t dim) const { return std::find(dims.begin(), dims.end(), dim) != dims.end(); }
  /// The dims of the indices stand where the indexed ones stood, or first when these are apart.
  int64_t result_dim(int64_t dim) const {
    const auto before =
        std::count_if(dims.begin(), dims.end(), [dim](int64_t indexed) { return indexed < dim; });
    const bool comes_after = !is_adjacent || before > 0;
    return dim - before + (comes_after ? index_ndim : 0);
  }
};

Decision index_decision(const OpCall& call, const Indexing& indexing) {
  const auto& self = call.tensor(0);
  Layout layout = self.is_partial() ? Layout() : self.layout();
  if (layout.is_shard() && indexing.has(layout.dim())) {
    layout = cut_elsewhere(call, self.sizes(), indexing.dims);
  }
  Decision decision;
  decision.inputs.resize(call.tensors().size());  // indices: whole
  decision.inputs[0] = layout;
  decision.outputs.push_back(layout.is_shard() ? layout.moved_to(indexing.result_dim(layout.dim()))
                                               : layout);
  return decision;
}

// ---- one index along the cut dim

using at::Tensor;
using c10::IValue;

/// x[..., index, ...] of which the indexed dim and the index are cut.
struct RowIndexing {
  int64_t dim;        ///< that is indexed
  Layout rows, list;  ///< of x and of the index
  Layout result() const { return list.moved_to(dim + list.dim()); }
};

/// Nothing when no rows travel: there are several indices, or another dim is cut.
std::optional<RowIndexing> row_indexing(const OpCall& call, const Indexing& indexing,
                                        bool is_written) {
  const auto& self = call.tensor(0);
  const auto& list = call.tensor(1);
  if (indexing.dims.size() != 1 || list.ndim() == 0) return std::nullopt;
  const int64_t dim = indexing.dims[0];
  if (self.is_shard() ? self.shard_dim() != dim : !list.is_shard()) return std::nullopt;
  const auto evenly = [&](int64_t along, int64_t size) {
    return Layout(Shard(along), even_partition(size, call.mesh().size()));
  };
  Layout rows = self.is_shard() ? self.layout() : Layout();
  if (!self.is_shard() && is_written) rows = evenly(dim, self.sizes()[static_cast<size_t>(dim)]);
  return RowIndexing{dim, rows, list.is_shard() ? list.layout() : evenly(0, list.sizes()[0])};
}

/// The one index, plain; negative ones count from the end of `size` rows.
Tensor index_of(const IValue& indices, int64_t size) {
  for (const std::optional<Tensor> index : indices.toOptionalTensorList()) {
    if (!index || !index->defined()) continue;
    const Tensor numbers = plain_numbers(*index).to(at::kLong);
    return at::where(numbers < 0, numbers + size, numbers);
  }
  TORCH_INTERNAL_ASSERT(false);
}

int64_t rows_of(const Partition& partition) {
  return offset_of(partition, static_cast<int64_t>(partition.size()));
}

std::optional<Decision> index(const OpCall& call) {
  const Indexing indexing(call);
  const auto cut = row_indexing(call, indexing, /*is_written=*/false);
  if (!cut) return index_decision(call, indexing);
  Decision decision;
  decision.inputs = {cut->rows, cut->list};
  decision.outputs.push_back(cut->result());
  if (!cut->rows.is_shard() || call.mesh().size() == 1) return decision;
  decision.local = [cut = *cut, name = call.name(),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor list = index_of(arguments[1], rows_of(cut.rows.partition));
    const RowRoute route(name, list.reshape({-1}), cut.rows.partition, mesh);
    const Tensor rows = route.fetch(arguments[0].toTensor(), cut.dim);
    return std::vector<IValue>{rows.unflatten(cut.dim, list.sizes())};
  };
  return decision;
}

/// Writes `values` (that broadcast with self[index]) into the rows of their owners.
void put_rows(Tensor& self, const Tensor& list, const Tensor& values, const RowIndexing& cut,
              bool accumulates, const RowRoute& route) {
  auto sizes = self.sizes().vec();
  sizes.erase(sizes.begin() + cut.dim);
  sizes.insert(sizes.begin() + cut.dim, list.sizes().begin(), list.sizes().end());
  const Tensor rows = values.expand(sizes).flatten(cut.dim, cut.dim + list.dim() - 1);
  const auto delivery = route.deliver(rows, cut.dim);
  if (accumulates) {
    self.index_add_(cut.dim, delivery.rows, delivery.values);
  } else {
    self.index_copy_(cut.dim, delivery.rows, delivery.values);
  }
}

/// How `values` lie that broadcast with a result of `ndim` dims.
Layout values_layout(const TensorArgument& values, const Layout& result, int64_t ndim) {
  if (!result.is_shard()) return {};
  const int64_t dim = result.dim() - (ndim - values.ndim());
  const bool is_cut = dim >= 0 && values.sizes()[static_cast<size_t>(dim)] != 1;
  return is_cut ? result.moved_to(dim) : Layout();
}

/// self[mask] = one value, where the mask covers the first dims of self: every rank writes what it
/// has. Nothing for other calls.
std::optional<Decision> put_where(const OpCall& call) {
  const auto indices = call.argument(1).toOptionalTensorList();
  const auto& mask = call.tensor(1);
  if (call.tensors().size() != 3 || mask.argument != 1 || !indices.get(0) ||
      mask.tensor.scalar_type() != at::kBool || call.tensor(2).tensor.numel() != 1) {
    return std::nullopt;
  }
  const auto& self = call.tensor(0);
  const auto covered = static_cast<size_t>(mask.ndim());
  TORCH_CHECK_INDEX(mask.ndim() <= self.ndim() && mask.sizes() == self.sizes().slice(0, covered),
                    call.name(), ": the mask of ", mask.sizes(),
                    " does not match the first dims of ", self.sizes());
  const Layout layout = self.is_partial() ? Layout() : self.layout();
  const bool cuts_mask = layout.is_shard() && layout.dim() < mask.ndim();
  Decision decision;
  decision.inputs = {layout, cuts_mask ? layout : Layout(), Layout()};
  decision.outputs.push_back(layout);
  return decision;
}

/// (self, indices, values, accumulate, ...): values broadcast with self[indices].
std::optional<Decision> index_put(const OpCall& call, bool is_in_place) {
  if (auto decision = put_where(call)) return decision;
  const Indexing indexing(call);
  const auto cut = row_indexing(call, indexing, /*is_written=*/true);
  auto decision = cut ? Decision() : index_decision(call, indexing);
  if (cut) {
    decision.inputs = {cut->rows, cut->list, Layout()};
    decision.outputs.push_back(cut->result());
  }
  const int64_t ndim =
      call.tensor(0).ndim() - static_cast<int64_t>(indexing.dims.size()) + indexing.index_ndim;
  decision.inputs.back() = values_layout(call.tensors().back(), decision.outputs[0], ndim);
  decision.outputs.assign(1, decision.inputs[0]);
  if (!cut || call.mesh().size() == 1) return decision;
  decision.local = [=, cut = *cut, name = call.name(),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor list = index_of(arguments[1], rows_of(cut.rows.partition));
    const bool accumulates = arguments[3].toBool();
    const RowRoute route(name, list.reshape({-1}), cut.rows.partition, mesh,
                         accumulates ? RowRoute::Repeats::Once : RowRoute::Repeats::Each);
    Tensor written = arguments[0].toTensor();
    if (!is_in_place) written = written.clone();
    put_rows(written, list, arguments[2].toTensor(), cut, accumulates, route);
    return std::vector<IValue>{written};
  };
  return decision;
}
std::optional<Decision> index_put_copy(const OpCall& call) { return index_put(call, false); }
std::optional<Decision> index_put_in_place(const OpCall& call) { return index_put(call, true); }

/// (self, index): the elements of the flattened tensor.
std::optional<Decision> take(const OpCall& call) {
  const Layout index = call.tensor(1).is_partial() ? Layout() : call.tensor(1).layout();
  Decision decision;
  decision.inputs.emplace_back();
  decision.inputs.push_back(index);
  decision.outputs.push_back(index);
  return decision;
}

/// put(self, index, source, accumulate): flat indices, of which every rank writes those in its
/// part.
std::optional<Decision> put(const OpCall& call) {
  const auto& self = call.tensor(0);
  const Layout layout = self.is_partial() ? Layout() : self.layout();
  Decision decision;
  decision.inputs.resize(3);
  decision.inputs[0] = layout;
  decision.outputs.push_back(layout);
  if (!layout.is_shard()) return decision;
  const auto sizes = self.sizes();
  const auto dim = static_cast<size_t>(layout.dim());
  const int64_t inner = c10::multiply_integers(sizes.slice(dim + 1));
  const int64_t n = sizes[dim];
  const int64_t rank = call.mesh().rank();
  const int64_t offset = offset_of(layout.partition, rank);
  const int64_t rows = layout.partition[static_cast<size_t>(rank)];
  decision.local = [=, numel = self.tensor.numel(),
                    writes = self.is_written](c10::ArrayRef<IValue> arguments) {
    Tensor local = arguments[0].toTensor();
    if (!writes) local = local.clone();
    if (rows == 0) return std::vector<IValue>{local};
    Tensor index = arguments[1].toTensor().reshape(-1);
    index = at::where(index.lt(0), index + numel, index);
    const Tensor row = index.div(inner, "floor").remainder(n) - offset;
    const Tensor is_mine = row.ge(0).logical_and(row.lt(rows));
    const Tensor own =
        (index.div(n * inner, "floor") * rows + row) * inner + index.remainder(inner);
    local.put_(own.masked_select(is_mine),
               arguments[2].toTensor().reshape(-1).masked_select(is_mine), arguments[3].toBool());
    return std::vector<IValue>{local};
  };
  return decision;
}

}  // namespace

SHARD_PATCH(indexing) {
  const char* const note = "along the dim itself: one all-to-all to another dim";
  patch.remembering_rule("aten::index.Tensor", index).shards("any dim").notes(note);
  const char* const put_note = "masks take one value";
  patch.rule("aten::index_put", index_put_copy).shards("any dim").notes(put_note);
  for (const char* op : {"aten::index_put_", "aten::_index_put_impl_"}) {
    patch.rule(op, index_put_in_place).shards("any dim").notes(put_note);
  }
  patch.rule("aten::take", take).shards("the index");
  for (const char* op : {"aten::put", "aten::put_"}) patch.rule(op, put).shards("any dim of self");
}

}  // namespace shard
