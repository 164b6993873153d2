// SPDX-License-Identifier: Apache-2.0
// Reading and writing by index along one dim or several, every other dim index by index. Cut along
// an indexed dim, the shard moves to another one first.
#include <ATen/ops/where.h>
#include <shard/patch.h>

#include <algorithm>

namespace shard {
namespace {

/// (self, dim, index, ...): `index` is 1-d and whole on every rank; the other tensors lie alike.
std::optional<Decision> by_index_list(const OpCall& call) {
  auto decision = along_dims(1)(call);
  if (decision) decision->inputs[1] = Layout();
  return decision;
}

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

std::optional<Decision> index(const OpCall& call) { return index_decision(call, Indexing(call)); }

/// (self, indices, values, ...): values broadcast with self[indices].
std::optional<Decision> index_put(const OpCall& call) {
  const Indexing indexing(call);
  auto decision = index_decision(call, indexing);
  const Layout& self = decision.inputs[0];
  const Layout& result = decision.outputs[0];
  const auto& values = call.tensors().back();
  if (result.is_shard()) {
    const int64_t ndim =
        call.tensor(0).ndim() - static_cast<int64_t>(indexing.dims.size()) + indexing.index_ndim;
    const int64_t dim = result.dim() - (ndim - values.ndim());
    if (dim >= 0 && values.sizes()[static_cast<size_t>(dim)] != 1) {
      decision.inputs.back() = result.moved_to(dim);
    }
  }
  decision.outputs.assign(1, self);
  return decision;
}

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
                    writes = self.is_written](c10::ArrayRef<c10::IValue> arguments) {
    at::Tensor local = arguments[0].toTensor();
    if (!writes) local = local.clone();
    if (rows == 0) return std::vector<c10::IValue>{local};
    at::Tensor index = arguments[1].toTensor().reshape(-1);
    index = at::where(index.lt(0), index + numel, index);
    const at::Tensor row = index.div(inner, "floor").remainder(n) - offset;
    const at::Tensor is_mine = row.ge(0).logical_and(row.lt(rows));
    const at::Tensor own =
        (index.div(n * inner, "floor") * rows + row) * inner + index.remainder(inner);
    local.put_(own.masked_select(is_mine),
               arguments[2].toTensor().reshape(-1).masked_select(is_mine), arguments[3].toBool());
    return std::vector<c10::IValue>{local};
  };
  return decision;
}

}  // namespace

SHARD_PATCH(indexing) {
  const char* const note = "along the dim itself: one all-to-all to another dim";
  patch.remembering_rule("aten::index_select", by_index_list).shards("any dim").notes(note);
  for (const char* op : {"aten::index_add", "aten::index_add_", "aten::index_copy",
                         "aten::index_copy_", "aten::index_reduce", "aten::index_reduce_",
                         "aten::index_fill.int_Scalar", "aten::index_fill_.int_Scalar",
                         "aten::index_fill.int_Tensor", "aten::index_fill_.int_Tensor"}) {
    patch.rule(op, by_index_list).shards("any dim").notes(note);
  }
  patch.remembering_rule("aten::index.Tensor", index).shards("any dim").notes(note);
  for (const char* op : {"aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}) {
    patch.rule(op, index_put).shards("any dim").notes("masks are refused");
  }
  patch.remembering_rule("aten::gather", along_dims(1)).shards("any dim").notes(note);
  for (const char* op :
       {"aten::scatter_add", "aten::scatter_add_", "aten::scatter.src", "aten::scatter_.src",
        "aten::scatter.value", "aten::scatter_.value", "aten::scatter.reduce",
        "aten::scatter_.reduce", "aten::scatter.value_reduce", "aten::scatter_.value_reduce",
        "aten::scatter_reduce.two", "aten::scatter_reduce_.two"}) {
    patch.rule(op, along_dims(1)).shards("any dim").notes(note);
  }
  patch.rule("aten::take", take).shards("the index");
  for (const char* op : {"aten::put", "aten::put_"}) patch.rule(op, put).shards("any dim of self");
}

}  // namespace shard
