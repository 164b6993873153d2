// SPDX-License-Identifier: Apache-2.0
// View ops: the local result is a true alias of the local input, so that in-place ops go through.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <shard/patch.h>

#include <numeric>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

Decision keep(const OpCall& call, const Layout& output) {
  Decision decision;
  for (const auto& argument : call.tensors()) decision.inputs.push_back(argument.layout());
  decision.outputs.push_back(output);
  return decision;
}

Decision with_local(Decision decision, std::function<Tensor(const Tensor&)> local) {
  decision.local = [local = std::move(local)](c10::ArrayRef<IValue> arguments) {
    return std::vector<IValue>{local(arguments[0].toTensor())};
  };
  return decision;
}

/// A dim of size 1 that is cut, and that the view takes away or repeats: one rank has its row, all
/// get it (a marked copy, see NOTE [Marked copies]). A single rank has it already.
Decision of_the_only_row(const OpCall& call) {
  if (call.mesh().size() == 1) return keep(call, Layout());
  Decision decision;
  decision.inputs.emplace_back();
  decision.outputs.emplace_back();
  return decision;
}

std::optional<Decision> expand(const OpCall& call) {
  const auto& input = call.tensor(0);
  auto sizes = call.integers(1);
  const auto shift = static_cast<int64_t>(sizes.size()) - input.ndim();
  if (!input.is_shard()) return keep(call, input.layout());
  const auto out_dim = input.shard_dim() + shift;
  auto& size = sizes[static_cast<size_t>(out_dim)];
  const int64_t global = input.sizes()[static_cast<size_t>(input.shard_dim())];
  if (size != -1 && size != global) return of_the_only_row(call);
  size = global;
  const Layout output = input.layout().moved_to(out_dim);
  auto decision = keep(call, output);
  decision.arguments.emplace_back(1, local_sizes(sizes, output, call.mesh().rank()));
  return decision;
}

// ---- permutations

Layout permuted(const Layout& layout, const std::vector<int64_t>& order) {
  if (!layout.is_shard()) return layout;
  const auto at = std::find(order.begin(), order.end(), layout.dim());
  return layout.moved_to(at - order.begin());
}

std::optional<Decision> permute(const OpCall& call) {
  auto order = call.integers(1);
  for (auto& dim : order) dim = c10::maybe_wrap_dim(dim, call.tensor(0).ndim());
  return keep(call, permuted(call.tensor(0).layout(), order));
}

Decision swap_dims(const OpCall& call, int64_t a, int64_t b) {
  std::vector<int64_t> order(static_cast<size_t>(call.tensor(0).ndim()));
  std::iota(order.begin(), order.end(), 0);
  if (!order.empty()) std::swap(order[static_cast<size_t>(a)], order[static_cast<size_t>(b)]);
  return keep(call, permuted(call.tensor(0).layout(), order));
}

std::optional<Decision> transpose(const OpCall& call) {
  const int64_t ndim = call.tensor(0).ndim();
  return swap_dims(call, call.dim(1, ndim), call.dim(2, ndim));
}

std::optional<Decision> matrix_transpose(const OpCall& call) {
  const int64_t ndim = call.tensor(0).ndim();
  return swap_dims(call, 0, ndim == 2 ? 1 : 0);
}

// ---- dims of size one

Decision drop_dims(const OpCall& call, const std::vector<int64_t>& dims) {
  const auto& input = call.tensor(0);
  if (!input.is_shard()) return keep(call, input.layout());
  if (std::find(dims.begin(), dims.end(), input.shard_dim()) != dims.end())
    return of_the_only_row(call);
  const auto before =
      std::count_if(dims.begin(), dims.end(), [&](int64_t dim) { return dim < input.shard_dim(); });
  return keep(call, input.layout().moved_to(input.shard_dim() - before));
}

/// Squeezes exactly `dims`, which have global size 1: a local size of 1 must not be taken for one.
Decision squeeze_exactly(const OpCall& call, std::vector<int64_t> dims) {
  std::erase_if(dims,
                [&](int64_t dim) { return call.tensor(0).sizes()[static_cast<size_t>(dim)] != 1; });
  const bool in_place = call.tensor(0).is_written;
  auto decision = drop_dims(call, dims);
  decision.local = [dims, in_place](c10::ArrayRef<IValue> arguments) {
    Tensor local = arguments[0].toTensor();
    return std::vector<IValue>{in_place ? local.squeeze_(dims) : local.squeeze(dims)};
  };
  return decision;
}

std::vector<int64_t> all_dims(int64_t ndim) {
  std::vector<int64_t> dims(static_cast<size_t>(ndim));
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

std::optional<Decision> squeeze(const OpCall& call) {
  return squeeze_exactly(call, all_dims(call.tensor(0).ndim()));
}
std::optional<Decision> squeeze_dim(const OpCall& call) {
  if (call.tensor(0).ndim() == 0) return keep(call, call.tensor(0).layout());
  return squeeze_exactly(call, {call.dim(1, call.tensor(0).ndim())});
}
std::optional<Decision> squeeze_dims(const OpCall& call) {
  auto dims = call.integers(1);
  for (auto& dim : dims) dim = c10::maybe_wrap_dim(dim, call.tensor(0).ndim());
  return squeeze_exactly(call, dims);
}

std::optional<Decision> unsqueeze(const OpCall& call) {
  const auto& input = call.tensor(0);
  const int64_t dim = call.dim(1, input.ndim() + 1);
  Layout output = input.layout();
  if (output.is_shard() && dim <= output.dim()) output = output.moved_to(output.dim() + 1);
  return keep(call, output);
}

// ---- parts

/// Whose piece contains `row`.
int64_t owner_of(const Partition& partition, int64_t row) {
  int64_t owner = 0;
  for (int64_t end = partition[0]; end <= row; end += partition[static_cast<size_t>(owner)]) {
    ++owner;
  }
  return owner;
}

/// One row of the sharded dim: its owner sends it to all.
Decision select_and_broadcast(const OpCall& call, int64_t dim, int64_t row) {
  auto decision = keep(call, Layout());
  if (call.mesh().size() == 1) return decision;
  decision.is_copy = true;
  const auto& partition = call.tensor(0).spec->partition();
  const auto owner = owner_of(partition, row);
  const int64_t local_row = row - offset_of(partition, owner);
  return with_local(std::move(decision), [=, mesh = call.mesh()](const Tensor& local) {
    Shape sizes(local.sizes());
    sizes[static_cast<size_t>(dim)] = 1;
    Tensor result = empty_of_shape(local, sizes);
    if (mesh.rank() == owner) innermost(result).copy_(innermost(local.narrow(dim, local_row, 1)));
    mesh.comm().broadcast(result, static_cast<int>(owner));
    return result.select(dim, 0);
  });
}

std::optional<Decision> select(const OpCall& call) {
  const auto& input = call.tensor(0);
  const int64_t dim = call.dim(1, input.ndim());
  Layout output = input.layout();
  if (!output.is_shard() || dim > output.dim()) return keep(call, output);
  if (dim < output.dim()) return keep(call, output.moved_to(output.dim() - 1));
  const int64_t n = input.sizes()[static_cast<size_t>(dim)];
  const int64_t row = call.integer(2);
  TORCH_CHECK_INDEX(row >= -n && row < n, "select(): index ", row,
                    " out of range for tensor of size ", input.sizes(), " at dimension ", dim);
  return select_and_broadcast(call, dim, row < 0 ? row + n : row);
}

/// The part [begin, end) with a step of a dim cut into pieces, per piece: first local row and
/// number of rows.
struct SlicePlan {
  int64_t begin = 0, end = 0, step = 1;
  std::pair<int64_t, int64_t> piece(int64_t offset, int64_t size) const {
    int64_t first = begin;
    if (first < offset) first += (offset - first + step - 1) / step * step;
    const int64_t last = std::min(end, offset + size);
    if (first >= last) return {0, 0};
    return {first - offset, (last - first + step - 1) / step};
  }
};

SlicePlan slice_plan(const OpCall& call, size_t argument, int64_t n) {
  SlicePlan plan;
  plan.step = call.integer(argument + 2);
  check<SpecMismatch>(plan.step > 0, call.name(), "got step ", plan.step,
                      "; expected one above 0.");
  plan.begin = call.optional_integer(argument).value_or(0);
  plan.end = call.optional_integer(argument + 1).value_or(n);
  if (plan.begin < 0) plan.begin += n;
  if (plan.end < 0) plan.end += n;
  plan.begin = std::clamp<int64_t>(plan.begin, 0, n);
  plan.end = std::clamp<int64_t>(plan.end, plan.begin, n);
  return plan;
}

Layout sliced(const Layout& layout, const SlicePlan& plan) {
  Layout result = layout;
  int64_t offset = 0;
  for (size_t i = 0; i < layout.partition.size(); ++i) {
    result.partition[i] = plan.piece(offset, layout.partition[i]).second;
    offset += layout.partition[i];
  }
  return result;
}

std::function<Tensor(const Tensor&)> local_slice(const OpCall& call, const Layout& layout,
                                                 int64_t dim, const SlicePlan& plan) {
  const auto rank = static_cast<size_t>(call.mesh().rank());
  const auto [first, rows] =
      plan.piece(offset_of(layout.partition, static_cast<int64_t>(rank)), layout.partition[rank]);
  return [dim, first = first, rows = rows, step = plan.step](const Tensor& local) {
    return local.slice(dim, first, rows ? first + (rows - 1) * step + 1 : first, step);
  };
}

std::optional<Decision> slice(const OpCall& call) {
  const auto& input = call.tensor(0);
  const int64_t dim = call.dim(1, input.ndim());
  if (!input.layout().is_shard() || dim != input.shard_dim()) return keep(call, input.layout());
  const auto plan = slice_plan(call, 2, input.sizes()[static_cast<size_t>(dim)]);
  return with_local(keep(call, sliced(input.layout(), plan)),
                    local_slice(call, input.layout(), dim, plan));
}

/// The layout of a tensor of global `sizes` of which a gradient for a part arrives.
Layout layout_of_whole(const OpCall& call, const std::vector<int64_t>& sizes) {
  const auto remembered = remembered_layout(call.mesh(), sizes);
  return remembered ? *remembered : call.tensor(0).layout();
}

std::optional<Decision> slice_backward(const OpCall& call) {
  const auto sizes = call.integers(1);
  const int64_t dim = call.dim(2, static_cast<int64_t>(sizes.size()));
  Layout whole = layout_of_whole(call, sizes);
  if (whole.is_partial()) whole = Layout();
  Decision decision;
  decision.outputs.push_back(whole);
  decision.arguments.emplace_back(1, local_sizes(sizes, whole, call.mesh().rank()));
  if (!whole.is_shard() || dim != whole.dim()) {
    decision.inputs.push_back(whole);
    return decision;
  }
  const auto plan = slice_plan(call, 3, sizes[static_cast<size_t>(dim)]);
  decision.inputs.push_back(sliced(whole, plan));
  decision.local = [part = local_slice(call, whole, dim, plan)](c10::ArrayRef<IValue> arguments) {
    const Tensor& gradient = arguments[0].toTensor();
    Tensor result = gradient.new_zeros(arguments[1].toIntVector());
    part(result).copy_(gradient);
    return std::vector<IValue>{result};
  };
  return decision;
}

/// The gradient of one row of the sharded dim: all ranks have it, the row's owner takes it.
Decision select_backward_of_a_row(const OpCall& call, const Layout& whole, int64_t row) {
  Decision decision;
  decision.inputs.emplace_back();
  decision.outputs.push_back(whole);
  const int64_t rank = call.mesh().rank();
  const int64_t local_row = row - offset_of(whole.partition, rank);
  const bool is_mine = local_row >= 0 && local_row < whole.partition[static_cast<size_t>(rank)];
  decision.local =
      [=, sizes = local_sizes(call.integers(1), whole, rank)](c10::ArrayRef<IValue> arguments) {
        const Tensor& gradient = arguments[0].toTensor();
        Tensor result = gradient.new_zeros(sizes);
        if (is_mine) result.select(whole.dim(), local_row).copy_(gradient);
        return std::vector<IValue>{result};
      };
  return decision;
}

std::optional<Decision> select_backward(const OpCall& call) {
  const auto sizes = call.integers(1);
  const int64_t dim = call.dim(2, static_cast<int64_t>(sizes.size()));
  const auto without_dim = [dim](const Layout& whole) {
    return whole.is_shard() && dim < whole.dim() ? whole.moved_to(whole.dim() - 1) : whole;
  };
  Layout whole = call.tensor(0).is_partial() ? Layout() : call.tensor(0).layout();
  if (whole.is_shard() && dim <= whole.dim()) whole = whole.moved_to(whole.dim() + 1);
  if (const auto remembered = remembered_layout(call.mesh(), sizes);
      remembered && remembered->is_shard()) {
    whole = *remembered;
  }
  if (whole.is_shard() && whole.dim() == dim) {
    const int64_t row = call.integer(3);
    return select_backward_of_a_row(call, whole,
                                    row < 0 ? row + sizes[static_cast<size_t>(dim)] : row);
  }
  Decision decision;
  decision.inputs.push_back(without_dim(whole));
  decision.outputs.push_back(whole);
  decision.arguments.emplace_back(1, local_sizes(sizes, whole, call.mesh().rank()));
  return decision;
}

/// split, split_with_sizes: every part is a slice.
Decision split_into(const OpCall& call, const std::vector<int64_t>& parts, int64_t dim) {
  const auto& input = call.tensor(0);
  auto decision = keep(call, input.layout());
  if (!input.layout().is_shard() || dim != input.shard_dim()) return decision;
  decision.outputs.clear();
  std::vector<std::function<Tensor(const Tensor&)>> slices;
  int64_t begin = 0;
  for (const int64_t size : parts) {
    const SlicePlan plan{begin, begin + size, 1};
    decision.outputs.push_back(sliced(input.layout(), plan));
    slices.push_back(local_slice(call, input.layout(), dim, plan));
    begin += size;
  }
  decision.local = [slices](c10::ArrayRef<IValue> arguments) {
    c10::List<Tensor> result;
    for (const auto& part : slices) result.push_back(part(arguments[0].toTensor()));
    return std::vector<IValue>{result};
  };
  return decision;
}

std::optional<Decision> split(const OpCall& call) {
  const int64_t dim = call.dim(2, call.tensor(0).ndim());
  const int64_t n = call.tensor(0).sizes()[static_cast<size_t>(dim)];
  const int64_t size = std::max<int64_t>(call.integer(1), 1);
  std::vector<int64_t> parts;
  for (int64_t begin = 0; begin < n || parts.empty(); begin += size) {
    parts.push_back(std::min(size, n - begin));
  }
  return split_into(call, parts, dim);
}

std::optional<Decision> split_with_sizes(const OpCall& call) {
  return split_into(call, call.integers(1), call.dim(2, call.tensor(0).ndim()));
}

std::optional<Decision> unbind(const OpCall& call) {
  const auto& input = call.tensor(0);
  const int64_t dim = call.dim(1, input.ndim());
  Layout whole = input.layout();
  if (whole.is_shard() && dim == whole.dim()) whole = cut_elsewhere(call, input.sizes(), {dim});
  Decision decision;
  decision.inputs.push_back(whole);
  decision.outputs.push_back(whole.is_shard() && dim < whole.dim() ? whole.moved_to(whole.dim() - 1)
                                                                   : whole);
  return decision;
}

/// The last dim, the two parts of a number, goes.
std::optional<Decision> view_as_complex(const OpCall& call) {
  const auto& input = call.tensor(0);
  const bool is_cut_apart = input.is_shard() && input.shard_dim() == input.ndim() - 1;
  const Layout layout =
      is_cut_apart ? cut_elsewhere(call, input.sizes(), {input.ndim() - 1}) : input.layout();
  Decision decision;
  decision.inputs.push_back(layout);
  decision.outputs.push_back(layout);
  // A tensor without elements counts as contiguous whatever its strides, which are checked here.
  decision.local = [](c10::ArrayRef<c10::IValue> arguments) {
    const Tensor x = arguments[0].toTensor();
    return std::vector<c10::IValue>{at::view_as_complex(
        x.numel() > 0 ? x : at::empty_like(x, x.options(), at::MemoryFormat::Contiguous))};
  };
  return decision;
}

std::optional<Decision> unchanged(const OpCall& call) {
  return keep(call, call.tensor(0).layout());
}

/// view(dtype): of another size of elements, the last dim shrinks or grows with it.
std::optional<Decision> view_as_dtype(const OpCall& call) {
  const auto& self = call.tensor(0);
  const auto from = static_cast<int64_t>(self.tensor.element_size());
  const auto to = static_cast<int64_t>(c10::elementSize(call.argument(1).toScalarType()));
  Decision decision;
  decision.inputs.push_back(self.layout());
  Layout result = self.layout();
  if (from != to && result.is_shard() && result.dim() == self.ndim() - 1) {
    for (auto& rows : result.partition) {
      if (rows * from % to != 0) return std::nullopt;  // an element of two ranks
      rows = rows * from / to;
    }
  }
  decision.outputs.push_back(std::move(result));
  return decision;
}

std::optional<Decision> view_as_real(const OpCall& call) {
  auto decision = unchanged(call);
  if (!innermost(call.tensor(0).tensor).is_conj()) return decision;
  decision->is_copy = true;
  decision->local = [](c10::ArrayRef<c10::IValue> arguments) {
    return std::vector<c10::IValue>{at::view_as_real(arguments[0].toTensor().resolve_conj())};
  };
  return decision;
}

/// The op that copies what the view would show: the same rule, results with memory of their own.
Rule copied(const Rule& view) {
  return [view](const OpCall& call) {
    auto decision = view(call);
    if (!decision || !decision->local) return decision;
    decision->is_copy = false;
    decision->local = [local = decision->local](c10::ArrayRef<IValue> arguments) {
      auto results = local(arguments);
      for (auto& result : results) {
        if (result.isTensor()) {
          result = result.toTensor().clone(at::MemoryFormat::Contiguous);
          continue;
        }
        c10::List<Tensor> copies;
        for (const Tensor& part : result.toTensorVector()) {
          copies.push_back(part.clone(at::MemoryFormat::Contiguous));
        }
        result = copies;
      }
      return results;
    };
    return decision;
  };
}

/// narrow_copy(self, dim, start, length)
std::optional<Decision> narrow_copy(const OpCall& call) {
  const auto& input = call.tensor(0);
  const int64_t dim = call.dim(1, input.ndim());
  const int64_t n = input.sizes()[static_cast<size_t>(dim)];
  const int64_t start = call.integer(2) < 0 ? call.integer(2) + n : call.integer(2);
  const int64_t length = call.integer(3);
  check<SpecMismatch>(start >= 0 && length >= 0 && start + length <= n, call.name(), "got start ",
                      call.integer(2), " and length ", length, " along dim ", dim, " of ",
                      input.sizes(), "; expected a part of it.");
  if (!input.layout().is_shard() || dim != input.shard_dim()) return keep(call, input.layout());
  const SlicePlan plan{start, start + length, 1};
  return with_local(keep(call, sliced(input.layout(), plan)),
                    local_slice(call, input.layout(), dim, plan));
}

/// "transpose.int" -> "aten::transpose_copy.int"
std::string copying(const std::string& op) {
  const auto dot = std::min(op.find('.'), op.size());
  return "aten::" + op.substr(0, dot) + "_copy" + op.substr(dot);
}

}  // namespace

SHARD_PATCH(views) {
  const auto add = [&](std::initializer_list<const char*> ops, const Rule& rule,
                       const char* shards) {
    for (const char* op : ops) patch.rule(std::string("aten::") + op, rule).shards(shards);
  };
  const auto add_copies = [&](std::initializer_list<const char*> ops, const Rule& rule) {
    for (const char* op : ops) patch.rule(copying(op), copied(rule)).shards("as the view");
  };
  add_copies({"view"}, view_as_sizes());
  patch.rule("aten::view.dtype", view_as_dtype)
      .shards("any dim")
      .notes("elements of another size: not where one would lie on two ranks")
      .needs_values();
  add_copies({"expand"}, expand);
  add_copies({"permute"}, permute);
  add_copies({"transpose.int"}, transpose);
  add_copies({"t"}, matrix_transpose);
  add_copies({"squeeze"}, squeeze);
  add_copies({"squeeze.dim"}, squeeze_dim);
  add_copies({"squeeze.dims"}, squeeze_dims);
  add_copies({"unsqueeze"}, unsqueeze);
  add_copies({"alias", "detach"}, unchanged);
  add_copies({"split_with_sizes"}, split_with_sizes);
  add_copies({"split.Tensor"}, split);
  add_copies({"unbind.int"}, unbind);
  patch.remembering_rule("aten::slice_copy.Tensor", copied(slice)).shards("as the view");
  patch.remembering_rule("aten::select_copy.int", copied(select)).shards("as the view");
  patch.rule("aten::narrow_copy", copied(narrow_copy)).shards("any dim");
  patch.sized_rule("aten::_reshape_alias", reshape_alias()).shards("as view");
  add({"view", "_unsafe_view"}, view_as_sizes(),
      "any dim; a copy where the pieces are not whole rows of one dim");
  add({"expand"}, expand, "any dim that keeps its size");
  add({"permute"}, permute, "any dim");
  add({"transpose.int", "transpose_"}, transpose, "any dim");
  add({"t", "t_"}, matrix_transpose, "any dim");
  add({"squeeze", "squeeze_"}, squeeze, "any dim larger than 1");
  add({"squeeze.dim", "squeeze_.dim"}, squeeze_dim, "any dim larger than 1");
  add({"squeeze.dims", "squeeze_.dims"}, squeeze_dims, "any dim larger than 1");
  add({"unsqueeze", "unsqueeze_"}, unsqueeze, "any dim");
  add({"detach", "detach_", "alias", "lift_fresh", "_conj", "_neg_view"}, unchanged, "any dim");
  patch.sized_rule("aten::view_as_real", view_as_real).shards("any dim");
  add({"view_as_complex"}, view_as_complex, "any dim; a copy along the last");
  patch.sized_rule("aten::slice_backward", slice_backward).shards("any dim");
  patch.sized_rule("aten::select_backward", select_backward).shards("any dim");
  add({"split_with_sizes", "unsafe_split_with_sizes"}, split_with_sizes, "any dim");
  add({"split.Tensor", "unsafe_split.Tensor"}, split, "any dim");
  add({"unbind.int"}, unbind, "any dim");
  patch.remembering_rule("aten::slice.Tensor", slice).shards("any dim");
  patch.remembering_rule("aten::select.int", select).shards("any dim");
}

}  // namespace shard
