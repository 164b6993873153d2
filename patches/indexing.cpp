// SPDX-License-Identifier: Apache-2.0
// Reading and writing by index along one dim or several, every other dim index by index. By lists
// of which one is along the cut dim, the lists are cut too and rows travel between their owners and
// those that name them (RowRoute). By one mask over the cut dim, the mask is cut too and every rank
// picks from its rows. In the other cases a shard along an indexed dim moves to another one first.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/where.h>
#include <shard/counted_patch.h>
#include <shard/patch.h>
#include <shard/route.h>

#include <algorithm>

namespace shard {
namespace {

bool is_mask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

/// x[indices]: which dims of x are indexed, and where the other ones lie in the result. A mask
/// stands for as many lists as it has dims.
struct Indexing {
  std::vector<int64_t> dims;
  int64_t index_ndim = 0;  ///< of the indices, broadcast
  bool is_adjacent = true;
  std::vector<at::Tensor> indices, masks;

  explicit Indexing(const OpCall& call) {
    int64_t dim = 0;
    for (const std::optional<at::Tensor>& index : call.argument(1).toOptionalTensorList().vec()) {
      const bool is_given = index && index->defined();
      if (is_given) add(call, *index, dim);
      dim += is_given && is_mask(*index) ? index->dim() : 1;
    }
  }
  void add(const OpCall& call, const at::Tensor& index, int64_t first) {
    const int64_t covered = is_mask(index) ? index.dim() : 1;
    if (is_mask(index)) {
      check_mask(call, index, first);
    } else {
      check_index_dtype(call.name(), index, /*takes_int=*/true);
    }
    for (int64_t dim = first; dim < first + covered; ++dim) {
      dims.push_back(dim);
      is_adjacent &= dim == dims.front() + static_cast<int64_t>(dims.size()) - 1;
    }
    index_ndim = std::max(index_ndim, is_mask(index) ? 1 : index.dim());
    indices.push_back(index);
    if (is_mask(index)) masks.push_back(index);
  }
  static void check_mask(const OpCall& call, const at::Tensor& mask, int64_t first) {
    const auto sizes = call.tensor(0).sizes();
    const auto begin = static_cast<size_t>(first);
    const auto ndim = static_cast<size_t>(mask.dim());
    check<SpecMismatch>(
        ndim > 0 && begin + ndim <= sizes.size() && sizes.slice(begin, ndim) == mask.sizes(),
        call.name(), "got a mask of ", mask.sizes(), " for the dims from ", first, " on of ", sizes,
        "; expected one of their sizes.");
  }
  bool is_one_mask() const { return indices.size() == 1 && masks.size() == 1; }
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

// ---- lists, of which one is along the cut dim

using at::Tensor;
using c10::IValue;

/// x[..., list, list, ...] of which an indexed dim and the lists are cut. The indexed dims count as
/// one whose rows are what the lists name, the cut dim first: so every rank owns a run of them.
struct RowIndexing {
  std::vector<int64_t> dims, sizes;  ///< the indexed ones of x
  int64_t dim;                       ///< where they are one, and those of the lists in the result
  Layout rows;                       ///< of x
  Layout lists;                      ///< of all lists, broadcast; Replicate when these are 0-d
  std::vector<int64_t> lists_sizes;

  Layout result() const { return lists.is_shard() ? lists.moved_to(dim + lists.dim()) : lists; }
  Layout of(const TensorArgument& list) const {
    if (!lists.is_shard()) return lists;
    const auto along = lists.dim() - static_cast<int64_t>(lists_sizes.size()) + list.ndim();
    const bool is_cut = along >= 0 && list.sizes()[static_cast<size_t>(along)] ==
                                          lists_sizes[static_cast<size_t>(lists.dim())];
    return is_cut ? lists.moved_to(along) : Layout();
  }
  bool has_one_list() const { return dims.size() == 1; }
  Partition owned() const {
    Partition owned = rows.partition;
    for (auto& size : owned) size *= c10::multiply_integers(sizes.begin() + 1, sizes.end());
    return owned;
  }
};

/// How the lists lie together: as the first one that is cut, else evenly along the first dim. (By
/// sizes it might be another dim at another place of an n-d mesh.)
Layout lists_layout(const OpCall& call, size_t count, const std::vector<int64_t>& sizes) {
  if (sizes.empty()) return {};
  const auto ndim = static_cast<int64_t>(sizes.size());
  for (const auto& list : call.tensors().slice(1, count)) {
    if (!list.is_shard()) continue;
    const int64_t dim = ndim - list.ndim() + list.shard_dim();
    const int64_t size = list.sizes()[static_cast<size_t>(list.shard_dim())];
    if (size == sizes[static_cast<size_t>(dim)]) return list.layout().moved_to(dim);
  }
  return {Shard(0), even_partition(sizes[0], call.mesh().size())};
}

/// Nothing when no rows travel: there are masks, or another dim is cut.
std::optional<RowIndexing> row_indexing(const OpCall& call, const Indexing& indexing,
                                        bool is_written) {
  const auto& self = call.tensor(0);
  const size_t count = indexing.indices.size();
  if (count == 0 || !indexing.masks.empty()) return std::nullopt;
  const auto lists = call.tensors().slice(1, count);
  const bool is_cut =
      std::any_of(lists.begin(), lists.end(), [](const auto& list) { return list.is_shard(); });
  if (self.is_shard() ? !indexing.has(self.shard_dim()) : !is_cut) return std::nullopt;
  RowIndexing result;
  for (const auto& list : lists) {
    result.lists_sizes = at::infer_size(result.lists_sizes, list.sizes());
  }
  result.dims = indexing.dims;
  const auto cut = std::find(result.dims.begin(), result.dims.end(), self.shard_dim());
  if (self.is_shard()) std::rotate(result.dims.begin(), cut, cut + 1);
  for (const int64_t dim : result.dims) {
    result.sizes.push_back(self.sizes()[static_cast<size_t>(dim)]);
  }
  result.dim = indexing.is_adjacent ? indexing.dims.front() : 0;
  result.lists = lists_layout(call, count, result.lists_sizes);
  if (self.is_shard()) {
    result.rows = self.layout();
  } else if (is_written) {
    result.rows = {Shard(result.dims[0]), even_partition(result.sizes[0], call.mesh().size())};
  }
  return result;
}

Tensor the_index(const IValue& indices) {
  for (const std::optional<Tensor> index : indices.toOptionalTensorList()) {
    if (index && index->defined()) return *index;
  }
  TORCH_INTERNAL_ASSERT(false);
}

/// The rows that the lists name, plain; -1 where one of them names none. Negative numbers count
/// from the end.
Tensor row_numbers(const IValue& indices, const RowIndexing& cut) {
  const auto lists = indices.toOptionalTensorList();
  Tensor numbers, exist;
  for (size_t i = 0; i < cut.dims.size(); ++i) {
    const std::optional<Tensor> list = lists.get(static_cast<size_t>(cut.dims[i]));
    const Tensor given = plain_numbers(*list).to(at::kLong);
    const Tensor row = at::where(given < 0, given + cut.sizes[i], given);
    const Tensor exists = (row >= 0).logical_and(row < cut.sizes[i]);
    numbers = i == 0 ? row : numbers * cut.sizes[i] + row;
    exist = i == 0 ? exists : exist.logical_and(exists);
  }
  return at::where(exist, numbers, -1);
}

std::vector<int64_t> other_dims(const Tensor& x, const RowIndexing& cut) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (std::find(cut.dims.begin(), cut.dims.end(), dim) == cut.dims.end()) dims.push_back(dim);
  }
  return dims;
}

/// Without cuts of these dims by other levels of an n-d mesh.
Tensor whole_along(const std::vector<int64_t>& dims, const Tensor& x) {
  if (!is_shard_tensor(x)) return x;
  const auto& spec = spec_of(x);
  const Tensor local = whole_along(dims, raw_local(x));
  const Tensor result = local.is_same(raw_local(x)) ? x : from_local(local, mesh_of(x), spec);
  const bool is_cut = std::find(dims.begin(), dims.end(), spec->shard_dim()) != dims.end();
  return is_cut ? redistribute(result, spec->replicated()) : result;
}

/// x with the indexed dims as one.
Tensor as_rows(const Tensor& x, const RowIndexing& cut) {
  if (cut.has_one_list()) return x;
  auto order = other_dims(x, cut);
  order.insert(order.begin() + cut.dim, cut.dims.begin(), cut.dims.end());
  return whole_along(cut.dims, x)
      .permute(order)
      .flatten(cut.dim, cut.dim + static_cast<int64_t>(cut.dims.size()) - 1);
}

/// `values`, that broadcast with x[lists], for every row named.
Tensor values_of_rows(const Tensor& values, const Tensor& x, c10::IntArrayRef lists,
                      const RowIndexing& cut) {
  std::vector<int64_t> sizes;
  for (const int64_t dim : other_dims(x, cut)) sizes.push_back(x.size(dim));
  sizes.insert(sizes.begin() + cut.dim, lists.begin(), lists.end());
  const Tensor all = values.expand(sizes);
  const auto ndim = static_cast<int64_t>(lists.size());
  return ndim == 0 ? all.unsqueeze(cut.dim) : all.flatten(cut.dim, cut.dim + ndim - 1);
}

/// The lists that name `rows` of this rank's own.
c10::List<std::optional<Tensor>> lists_of(const Tensor& rows, const RowIndexing& cut) {
  std::vector<std::optional<Tensor>> lists(
      static_cast<size_t>(*std::max_element(cut.dims.begin(), cut.dims.end())) + 1);
  Tensor outer = rows;
  for (size_t i = cut.dims.size(); i-- > 1;) {
    lists[static_cast<size_t>(cut.dims[i])] = outer.remainder(cut.sizes[i]);
    outer = outer.div(cut.sizes[i], "floor");
  }
  lists[static_cast<size_t>(cut.dims[0])] = outer;
  return c10::List<std::optional<Tensor>>(lists);
}

// ---- one mask, over the cut dim

/// x[..., mask, ...] of which masked dims and the mask are cut alike, along the outermost of them.
struct MaskIndexing {
  int64_t dim;  ///< of the picked rows in the result: the first masked one
  Layout rows, mask;
};

/// Nothing when no masked dim is cut: every rank then picks the same rows, and how many they are
/// has not to be told.
std::optional<MaskIndexing> mask_indexing(const OpCall& call, const Indexing& indexing) {
  const auto& self = call.tensor(0);
  const auto& mask = call.tensor(1);
  if (!indexing.is_one_mask()) return std::nullopt;
  if (self.is_shard() ? !indexing.has(self.shard_dim()) : !mask.is_shard()) return std::nullopt;
  const int64_t first = indexing.dims.front();
  const int64_t dim = outermost_dim(self.sizes(), first, indexing.dims.back() + 1);
  Layout rows(Shard(dim),
              even_partition(self.sizes()[static_cast<size_t>(dim)], call.mesh().size()));
  if (mask.shard_dim() == dim - first) rows.partition = mask.spec->partition();
  if (self.shard_dim() == dim) rows.partition = self.spec->partition();
  return MaskIndexing{first, rows, rows.moved_to(dim - first)};
}

c10::SmallVector<Layout, 4> layouts(const OpCall& call, const RowIndexing& cut) {
  c10::SmallVector<Layout, 4> result{cut.rows};
  for (const auto& list : call.tensors().slice(1)) result.push_back(cut.of(list));
  return result;
}

std::optional<Decision> index(const OpCall& call) {
  const Indexing indexing(call);
  if (const auto masked = mask_indexing(call, indexing)) {
    Decision decision;
    decision.inputs = {masked->rows, masked->mask};
    decision.outputs.push_back(counted_along(masked->dim));
    return decision;
  }
  const auto cut = row_indexing(call, indexing, /*is_written=*/false);
  if (!cut) return index_decision(call, indexing);
  Decision decision;
  decision.inputs = layouts(call, *cut);
  decision.outputs.push_back(cut->result());
  if (!cut->rows.is_shard() || call.mesh().size() == 1) return decision;
  decision.local = [cut = *cut, name = call.name(),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor numbers = row_numbers(arguments[1], cut);
    const RowRoute route(name, numbers.reshape({-1}), cut.owned(), mesh);
    const Tensor rows = route.fetch(as_rows(arguments[0].toTensor(), cut), cut.dim);
    return std::vector<IValue>{numbers.dim() == 0 ? rows.squeeze(cut.dim)
                                                  : rows.unflatten(cut.dim, numbers.sizes())};
  };
  return decision;
}

/// Writes `values` (that broadcast with self[lists]) into the rows of their owners.
void put_rows(Tensor& self, const Tensor& numbers, const Tensor& values, const RowIndexing& cut,
              bool accumulates, const DeviceMesh& mesh, const std::string& name) {
  Tensor named = numbers.reshape({-1});
  Tensor rows = values_of_rows(values, self, numbers.sizes(), cut);
  if (!cut.lists.is_shard() && mesh.rank() != 0) {  // all name the same row: it is brought once
    named = named.narrow(0, 0, 0);
    rows = rows.narrow(cut.dim, 0, 0);
  }
  const RowRoute route(name, named, cut.owned(), mesh,
                       accumulates ? RowRoute::Repeats::Once : RowRoute::Repeats::Each);
  const auto delivery = route.deliver(rows, cut.dim);
  if (!cut.has_one_list()) {
    self.index_put_(lists_of(delivery.rows, cut), delivery.values, accumulates);
  } else if (accumulates) {
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

/// Whether `values` broadcast with x[mask], but for how many rows are picked: along dim `picked` of
/// the values, none when they are the same for all.
bool fit_picked_rows(const TensorArgument& values, c10::IntArrayRef result, int64_t picked) {
  if (values.tensor.numel() == 1) return true;
  const auto shift = static_cast<int64_t>(result.size()) - values.ndim();
  for (int64_t dim = 0; dim < values.ndim(); ++dim) {
    const int64_t size = values.sizes()[static_cast<size_t>(dim)];
    if (dim == picked || size == 1) continue;
    if (shift + dim < 0 || size != result[static_cast<size_t>(shift + dim)]) return false;
  }
  return shift >= 0;
}

/// index_put_ by one mask: every rank writes its rows, with as many of the values as it picks.
Decision put_masked(const OpCall& call, const MaskIndexing& cut, const Indexing& indexing) {
  const auto& values = call.tensors().back();
  auto result = call.tensor(0).sizes().vec();
  result.erase(result.begin() + indexing.dims.front() + 1,
               result.begin() + indexing.dims.back() + 1);
  const int64_t along = cut.dim - static_cast<int64_t>(result.size()) + values.ndim();
  const bool has_rows = along >= 0 && values.sizes()[static_cast<size_t>(along)] != 1;
  check<SpecMismatch>(fit_picked_rows(values, result, has_rows ? along : -1), call.name(),
                      "got values of ", values.sizes(), " for the rows that a mask picks of ",
                      call.tensor(0).sizes(), "; expected values that broadcast with them.");
  Layout rows;
  if (has_rows && values.is_shard()) {
    rows = values.shard_dim() == along
               ? values.layout()
               : Layout(Shard(along), even_partition(values.sizes()[static_cast<size_t>(along)],
                                                     call.mesh().size()));
  }
  Decision decision;
  decision.inputs = {cut.rows, cut.mask, rows};
  decision.outputs.push_back(cut.rows);
  if (!has_rows || call.mesh().size() == 1) return decision;
  decision.local = [=, given = values.sizes()[static_cast<size_t>(along)], name = call.name(),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const auto indices = arguments[1].toOptionalTensorList();
    const Partition counts = count_rows(count_set(the_index(arguments[1])), mesh);
    check<SpecMismatch>(total_of(counts) == given, name, "got ", given, " rows of values for ",
                        total_of(counts), " rows that a mask picks; expected as many.");
    Tensor written = arguments[0].toTensor();
    written.index_put_(indices, take_rows(arguments[2].toTensor(), along, rows, counts, mesh),
                       arguments[3].toBool());
    return std::vector<IValue>{written};
  };
  return decision;
}

/// The same for a copy, which lies like x: a copy is made and written.
Decision put_masked_copy(const OpCall& call) {
  Decision decision;
  for (const auto& tensor : call.tensors()) decision.inputs.push_back(tensor.layout());
  const auto& self = call.tensor(0);
  decision.outputs.push_back(self.is_partial() ? Layout() : self.layout());
  const std::vector<IValue> whole{call.argument(0), call.argument(1), call.argument(2),
                                  call.argument(3)};
  decision.local = [whole, mesh = call.mesh()](c10::ArrayRef<IValue>) {
    const Tensor x = promote(whole[0].toTensor(), mesh);
    Tensor copy = redistribute(x, dual_spec(spec_of(x))).clone();
    copy.index_put_(whole[1].toOptionalTensorList(), whole[2].toTensor(), whole[3].toBool());
    return std::vector<IValue>{raw_local(copy)};
  };
  return decision;
}

/// (self, indices, values, accumulate, ...): values broadcast with self[indices].
std::optional<Decision> index_put(const OpCall& call, bool is_in_place) {
  const Indexing indexing(call);
  if (const auto masked = mask_indexing(call, indexing)) {
    return is_in_place ? put_masked(call, *masked, indexing) : put_masked_copy(call);
  }
  const auto cut = row_indexing(call, indexing, /*is_written=*/true);
  auto decision = cut ? Decision() : index_decision(call, indexing);
  if (cut) {
    decision.inputs = layouts(call, *cut);
    decision.outputs.push_back(cut->result());
  }
  const int64_t ndim =
      call.tensor(0).ndim() - static_cast<int64_t>(indexing.dims.size()) + indexing.index_ndim;
  decision.inputs.back() = values_layout(call.tensors().back(), decision.outputs[0], ndim);
  decision.outputs.assign(1, decision.inputs[0]);
  if (!cut || call.mesh().size() == 1) return decision;
  decision.local = [=, cut = *cut, name = call.name(),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    Tensor written = arguments[0].toTensor();
    if (!is_in_place) written = written.clone();
    put_rows(written, row_numbers(arguments[1], cut), arguments[2].toTensor(), cut,
             arguments[3].toBool(), mesh, name);
    return std::vector<IValue>{written};
  };
  return decision;
}
std::optional<Decision> index_put_copy(const OpCall& call) { return index_put(call, false); }
std::optional<Decision> index_put_in_place(const OpCall& call) { return index_put(call, true); }

}  // namespace

SHARD_PATCH(indexing) {
  const char* const note =
      "along the dim itself: rows travel by lists, every rank picks its own by one mask, else one "
      "all-to-all to another dim";
  patch.remembering_rule("aten::index.Tensor", index).shards("any dim").notes(note);
  patch.rule("aten::index_put", index_put_copy).shards("any dim").notes(note);
  for (const char* op : {"aten::index_put_", "aten::_index_put_impl_"}) {
    patch.rule(op, index_put_in_place).shards("any dim").notes(note);
  }
}

}  // namespace shard
