// SPDX-License-Identifier: Apache-2.0
// Gathering and scattering by an index a element. Along the cut dim the shard moves to another dim
// first, unless the index is one number a row, spread over the other dims (as expand() makes it, or
// there are no others): then whole rows travel between their owners and those that name them. Where
// no other dim has a row for every rank, gathered and added elements travel one by one.
#include <ATen/ops/arange.h>
#include <shard/outermost.h>
#include <shard/patch.h>
#include <shard/route.h>

#include <algorithm>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

/// Alike but for `dim`.
bool are_alike(c10::IntArrayRef a, c10::IntArrayRef b, int64_t dim) {
  if (a.size() != b.size()) return false;
  for (size_t d = 0; d < a.size(); ++d) {
    if (static_cast<int64_t>(d) != dim && a[d] != b[d]) return false;
  }
  return true;
}

/// Whether the index has self's sizes but for `dim`, and all elements of a row are one number: told
/// by strides. A level that does not know the whole index goes by lines.
bool names_rows(const OpCall& level, int64_t dim) {
  const OpCall& call = outermost_call(level);
  if (!sees_global_sizes(call.mesh())) return false;
  const auto& index = call.tensor(1);
  if (index.ndim() == 0 || has_empty_rows(index.tensor, dim) ||
      !are_alike(call.tensor(0).sizes(), index.sizes(), dim)) {
    return false;
  }
  for (int64_t d = 0; d < index.ndim(); ++d) {
    if (d != dim && index.tensor.size(d) != 1 && index.tensor.stride(d) != 0) return false;
  }
  return true;
}

/// The number of every row, plain and long.
Tensor row_numbers(const Tensor& index, int64_t dim) {
  Tensor list = index;
  for (int64_t d = index.dim() - 1; d >= 0; --d) {
    if (d != dim) list = list.narrow(d, 0, 1).squeeze(d);
  }
  return plain_numbers(list).to(at::kLong);  // none may be of any type
}

/// What LibTorch asks of the index and of all sizes, which it might not find in the parts of every
/// rank: those of the index are at most self's but for `dim`, and at most the source's.
void check_index(const OpCall& call, int64_t dim) {
  const auto& index = call.tensor(1);
  if (&outermost_call(call) != &call || index.tensor.numel() == 0) return;
  check_index_dtype(call.name(), index.tensor, /*takes_int=*/true);
  for (size_t i = 0; i < call.tensors().size(); ++i) {
    const auto sizes = call.tensor(i).sizes();
    bool fits = std::max<size_t>(sizes.size(), 1) == std::max<size_t>(index.sizes().size(), 1);
    for (size_t d = 0; fits && d < std::min(sizes.size(), index.sizes().size()); ++d) {
      const bool is_bound = i >= 2 || static_cast<int64_t>(d) != dim;
      fits = !is_bound || index.sizes()[d] <= sizes[d];
    }
    check<SpecMismatch>(fits, call.name(), "got an index of ", index.sizes(), " for ",
                        i == 0 ? "self of " : "a source of ", sizes,
                        "; expected equal dims, and no size above these but along dim ", dim,
                        " of self.");
  }
}

Layout even_layout(const OpCall& call, int64_t dim, const TensorArgument& tensor) {
  return {Shard(dim), even_partition(tensor.sizes()[static_cast<size_t>(dim)], call.mesh().size())};
}

/// The same boundaries over `n` rows: later ones are cut off, the last piece takes what remains.
Partition fitted(const Partition& partition, int64_t n) {
  Partition result;
  int64_t begin = 0;
  int64_t boundary = 0;
  for (size_t i = 0; i < partition.size(); ++i) {
    boundary += partition[i];
    const int64_t end = i + 1 == partition.size() ? n : std::min(boundary, n);
    result.push_back(end - begin);
    begin = end;
  }
  return result;
}

/// Element by element, every line along `dim` whole on a rank. An index may have fewer rows along
/// the other dims: they lie where self's first rows lie.
Decision by_lines(const OpCall& call, bool result_is_like_index) {
  const auto sizes = call.tensor(0).sizes();
  const int64_t ndim = call.tensor(0).ndim();
  const int64_t along = call.dim(1, ndim);
  check_index(call, along);
  Layout cut;
  for (const auto& argument : call.tensors()) {
    if (argument.is_shard() && argument.ndim() == ndim && !cut.is_shard()) cut = argument.layout();
  }
  if (cut.is_shard() && cut.dim() == along) cut = cut_elsewhere(call, sizes, {along});
  const auto layout_of = [&](const TensorArgument& argument) {
    if (!cut.is_shard() || argument.ndim() != ndim) return Layout();
    const int64_t n = argument.sizes()[static_cast<size_t>(cut.dim())];
    return Layout(cut.placement, fitted(cut.partition, n));
  };
  Decision decision;
  for (const auto& argument : call.tensors()) decision.inputs.push_back(layout_of(argument));
  decision.outputs.push_back(layout_of(call.tensor(result_is_like_index ? 1 : 0)));
  return decision;
}
std::optional<Decision> scatter_by_lines(const OpCall& call) { return by_lines(call, false); }

// ---- element by element

/// Whether no other dim has a row for every rank.
bool lacks_other_dims(const OpCall& call, int64_t dim) {
  if (call.mesh().size() == 1 || !sees_global_sizes(call.mesh())) return false;
  const auto sizes = outermost_call(call).tensor(0).sizes();
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
    if (d != dim && sizes[static_cast<size_t>(d)] >= call.mesh().size()) return false;
  }
  return true;
}

/// The elements of x as one dim, those of a row along `dim` together: cut where the rows are.
Tensor as_elements(const Tensor& x, int64_t dim) {
  return x.dim() == 0 ? x.reshape({1}) : x.movedim(dim, 0).reshape({-1});
}
/// The opposite, for an x of `sizes`.
Tensor from_elements(const Tensor& elements, c10::IntArrayRef sizes, int64_t dim) {
  if (sizes.empty()) return elements.reshape({});
  auto moved = sizes.vec();
  std::rotate(moved.begin(), moved.begin() + dim, moved.begin() + dim + 1);
  return elements.reshape(moved).movedim(0, dim);
}

/// Which of the elements of x the index names.
Tensor element_numbers(const Tensor& x, int64_t dim, const Tensor& index) {
  auto sizes = x.sizes().vec();
  sizes[static_cast<size_t>(dim)] = 1;
  const int64_t in_row = c10::multiply_integers(sizes);
  Tensor places = at::arange(in_row, innermost(index).options()).view(sizes);
  for (int64_t d = 0; d < index.dim(); ++d) {
    if (d != dim) places = places.narrow(d, 0, index.size(d));
  }
  return as_elements(index * in_row + (index.dim() == 0 ? places.reshape({}) : places), dim);
}

Tensor laid(const Tensor& x, const Layout& layout, const DeviceMesh& mesh) {
  const Tensor given = promote(x, mesh);
  return redistribute(given, spec_of(given)->with(layout.placement, x.sizes(), layout.partition));
}

/// What `f` makes of the arguments as they are, laid as `output`.
Decision on_all_levels(const OpCall& call, const Layout& output, std::function<Tensor()> f) {
  Decision decision;
  for (const auto& argument : call.tensors()) decision.inputs.push_back(argument.layout());
  decision.outputs.push_back(output);
  decision.local = [=, f = std::move(f), mesh = call.mesh()](c10::ArrayRef<IValue>) {
    return std::vector<IValue>{raw_local(laid(f(), output, mesh))};
  };
  return decision;
}

Decision gather_elements(const OpCall& call, int64_t dim) {
  const auto& index = call.tensor(1);
  Layout cut;
  if (index.ndim() > 0 && index.tensor.numel() > 0) {
    cut = index.shard_dim() == dim ? index.layout() : even_layout(call, dim, index);
  }
  return on_all_levels(
      call, cut, [=, x = call.tensor(0).tensor, i = index.tensor, mesh = call.mesh()] {
        if (i.numel() == 0) return innermost(x).new_empty(i.sizes());
        const Tensor numbers = element_numbers(x, dim, laid(i, cut, mesh));
        return from_elements(as_elements(x, dim).index_select(0, numbers), i.sizes(), dim);
      });
}

// gather(self, dim, index, ...)
std::optional<Decision> gather(const OpCall& call) {
  const auto& self = call.tensor(0);
  const auto& index = call.tensor(1);
  const int64_t dim = call.dim(1, self.ndim());
  check_index(call, dim);
  Decision decision;
  if (!self.is_shard() && index.is_shard() && index.shard_dim() == dim) {
    decision.inputs = {Layout(), index.layout()};
    decision.outputs.push_back(index.layout());
    return decision;
  }
  const bool is_cut = self.is_shard() && self.shard_dim() == dim;
  if (!is_cut || !names_rows(call, dim)) {
    return is_cut && lacks_other_dims(call, dim) ? gather_elements(call, dim)
                                                 : by_lines(call, true);
  }
  const Layout cut = index.is_shard() && index.shard_dim() == dim ? index.layout()
                     : outermost_call(call).tensor(1).tensor.numel() == 1
                         ? Layout()  // one number: of it every rank has the result, as of index
                         : even_layout(call, dim, index);
  decision.inputs = {self.layout(), cut};
  decision.outputs.push_back(cut);
  if (call.mesh().size() == 1) return decision;
  decision.local = [dim, owned = self.layout().partition, name = call.name(),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor self = arguments[0].toTensor();
    const Tensor index = arguments[2].toTensor();
    if (has_empty_rows(index, dim)) {
      return std::vector<IValue>{empty_of_shape(self, index.sizes())};
    }
    const RowRoute route(name, row_numbers(index, dim), owned, mesh);
    return std::vector<IValue>{route.fetch(self, dim)};
  };
  return decision;
}

/// How an op (self, dim, index, src, ...) writes the values delivered for `rows` of `self`.
using Write = void (*)(Tensor& self, int64_t dim, const RowRoute::Delivery& delivery,
                       c10::ArrayRef<IValue> arguments);

void add(Tensor& self, int64_t dim, const RowRoute::Delivery& delivery, c10::ArrayRef<IValue>) {
  self.index_add_(dim, delivery.rows, delivery.values);
}
void copy(Tensor& self, int64_t dim, const RowRoute::Delivery& delivery, c10::ArrayRef<IValue>) {
  self.index_copy_(dim, delivery.rows, delivery.values);
}
/// The reductions' names are those of index_reduce, but for the sum.
void reduce(Tensor& self, int64_t dim, const RowRoute::Delivery& delivery,
            c10::ArrayRef<IValue> arguments) {
  const auto how = arguments[4].toStringView();
  const bool includes_self = arguments[5].toBool();
  if (how != "sum") {
    self.index_reduce_(dim, delivery.rows, delivery.values, how, includes_self);
    return;
  }
  if (!includes_self) self.index_fill_(dim, delivery.rows, 0);
  self.index_add_(dim, delivery.rows, delivery.values);
}

/// Whether index_reduce has a kernel for what scatter_reduce does.
bool reduces_rows(const OpCall& call) {
  const auto dtype = call.tensor(0).tensor.scalar_type();
  const bool is_product = call.argument(4).toStringView() == "prod";
  return dtype != at::kBool && !(is_product && at::isReducedFloatingType(dtype));
}

/// x with the source's elements added, of which there are as many as the index has.
Tensor with_added_elements(const Tensor& x, int64_t dim, const Tensor& index,
                           const Tensor& source) {
  if (index.numel() == 0) return x.clone();
  Tensor added = source.dim() == 0 && index.dim() > 0 ? source.reshape({1}) : source;
  for (int64_t d = 0; d < index.dim(); ++d) added = added.narrow(d, 0, index.size(d));
  const Tensor numbers = element_numbers(x, dim, index);
  const Tensor sums =
      as_elements(x, dim).index_add(0, numbers, as_elements(added, dim).reshape(numbers.sizes()));
  return from_elements(sums, x.sizes(), dim);
}

Decision add_elements(const OpCall& call, int64_t dim, bool is_in_place) {
  const auto& self = call.tensor(0);
  auto decision = on_all_levels(
      call, self.layout(),
      [=, x = self.tensor, index = call.tensor(1).tensor, source = call.tensor(2).tensor] {
        return with_added_elements(x, dim, index, source);
      });
  if (!is_in_place) return decision;
  decision.local = [sums = decision.local](c10::ArrayRef<IValue> arguments) {
    const Tensor written = arguments[0].toTensor();
    return std::vector<IValue>{written.copy_(sums(arguments)[0].toTensor())};
  };
  return decision;
}

Rule scatter(Write write, RowRoute::Repeats repeats, bool is_in_place) {
  return [=](const OpCall& call) -> std::optional<Decision> {
    const auto& self = call.tensor(0);
    const auto& index = call.tensor(1);
    const auto& source = call.tensor(2);
    const int64_t dim = call.dim(1, self.ndim());
    check_index(call, dim);
    const bool is_cut = self.is_shard() ? self.shard_dim() == dim
                                        : index.shard_dim() == dim || source.shard_dim() == dim;
    const auto have_sizes_of_index = [](const OpCall& whole) {
      return whole.tensor(1).sizes() == whole.tensor(2).sizes();
    };
    if (write == reduce && !reduces_rows(call)) return by_lines(call, false);
    if (!is_cut || !names_rows(call, dim) || !have_sizes_of_index(outermost_call(call))) {
      const bool adds_elements =
          write == add && self.is_shard() && self.shard_dim() == dim && lacks_other_dims(call, dim);
      return adds_elements ? add_elements(call, dim, is_in_place) : by_lines(call, false);
    }
    const Layout rows = self.is_shard() ? self.layout() : even_layout(call, dim, self);
    const Layout cut = index.shard_dim() == dim    ? index.layout()
                       : source.shard_dim() == dim ? source.layout()
                                                   : even_layout(call, dim, index);
    Decision decision;
    decision.inputs = {rows, cut, cut};
    decision.outputs.push_back(rows);
    if (call.mesh().size() == 1) return decision;
    decision.local = [=, name = call.name(), mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
      const Tensor index = arguments[2].toTensor();
      Tensor written = arguments[0].toTensor();
      if (!is_in_place) written = written.clone();
      if (has_empty_rows(index, dim)) return std::vector<IValue>{written};
      const RowRoute route(name, row_numbers(index, dim), rows.partition, mesh, repeats);
      const auto delivery = route.deliver(arguments[3].toTensor(), dim);
      write(written, dim, delivery, arguments);
      return std::vector<IValue>{written};
    };
    return decision;
  };
}

}  // namespace

SHARD_PATCH(scatter) {
  const char* const note =
      "along the dim itself: rows travel where the index is one number a row (expanded), else one "
      "all-to-all to another dim";
  patch.remembering_rule("aten::gather", gather)
      .shards("any dim")
      .notes(std::string(note) + ", or element by element where none has a row for every rank");
  const auto add_scatter = [&](const std::string& op, const std::string& overload, Write write,
                               RowRoute::Repeats repeats) {
    patch.rule(op + overload, scatter(write, repeats, false)).shards("any dim").notes(note);
    patch.rule(op + "_" + overload, scatter(write, repeats, true)).shards("any dim").notes(note);
  };
  add_scatter("aten::scatter_add", "", add, RowRoute::Repeats::Once);
  add_scatter("aten::scatter", ".src", copy, RowRoute::Repeats::Each);
  add_scatter("aten::scatter_reduce", ".two", reduce, RowRoute::Repeats::Each);
  for (const char* op :
       {"aten::scatter.value", "aten::scatter_.value", "aten::scatter.reduce",
        "aten::scatter_.reduce", "aten::scatter.value_reduce", "aten::scatter_.value_reduce"}) {
    patch.rule(op, scatter_by_lines)
        .shards("any dim")
        .notes("along the dim itself: to another dim");
  }
}

}  // namespace shard
