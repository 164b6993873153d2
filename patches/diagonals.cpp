// SPDX-License-Identifier: Apache-2.0
// Diagonals and triangles. A piece of a matrix is a matrix whose diagonals are shifted by where the
// piece begins: along rows up, along columns down.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/diag_embed.h>
#include <ATen/ops/diagonal.h>
#include <shard/count_rows.h>
#include <shard/patch.h>

#include <algorithm>

namespace shard {
namespace {

using at::Tensor;

/// Where the diagonals of a piece lie that begins at `offset`.
int64_t shifted(int64_t diagonal, int64_t offset, bool along_rows) {
  return along_rows ? diagonal + offset : diagonal - offset;
}

// ---- triangles

/// tril(self, diagonal), triu
std::optional<Decision> triangle(const OpCall& call) {
  const auto& input = call.tensor(0);
  Decision decision;
  decision.inputs.push_back(input.layout());
  decision.outputs.push_back(input.layout());
  const bool along_rows = input.shard_dim() == input.ndim() - 2;
  if (input.is_shard() && input.shard_dim() >= input.ndim() - 2) {
    decision.arguments.emplace_back(
        1, shifted(call.integer(1), input.spec->offset(call.mesh().rank()), along_rows));
  }
  return decision;
}

// ---- diagonals: (self, offset, dim1, dim2), the diagonal becomes the last dim

struct Diagonal {
  int64_t offset, dim1, dim2, rows, columns;

  Diagonal(const OpCall& call, c10::IntArrayRef sizes, size_t argument)
      : offset(call.integer(argument)),
        dim1(call.dim(argument + 1, static_cast<int64_t>(sizes.size()))),
        dim2(call.dim(argument + 2, static_cast<int64_t>(sizes.size()))),
        rows(sizes[static_cast<size_t>(dim1)]),
        columns(sizes[static_cast<size_t>(dim2)]) {}

  bool has(int64_t dim) const { return dim == dim1 || dim == dim2; }
  int64_t first_row() const { return std::max<int64_t>(-offset, 0); }
  int64_t first_column() const { return std::max<int64_t>(offset, 0); }
  int64_t size() const {
    return std::max<int64_t>(std::min(rows - first_row(), columns - first_column()), 0);
  }
  /// How many elements lie in every piece of a cut along dim1 or dim2.
  Partition pieces(const Layout& cut) const {
    const int64_t first = cut.dim() == dim1 ? first_row() : first_column();
    Partition result;
    int64_t begin = 0;
    for (const int64_t length : cut.partition) {
      const int64_t low = std::max<int64_t>(begin - first, 0);
      const int64_t high = std::min(begin + length - first, size());
      result.push_back(std::max<int64_t>(high - low, 0));
      begin += length;
    }
    return result;
  }
  /// Of the tensor with the diagonal as its last dim.
  Layout output(const Layout& cut, int64_t ndim) const {
    if (!cut.is_shard()) return cut;
    if (has(cut.dim())) return {Shard(ndim - 2), pieces(cut)};
    return cut.moved_to(cut.dim() - (dim1 < cut.dim() ? 1 : 0) - (dim2 < cut.dim() ? 1 : 0));
  }
  int64_t local_offset(const Layout& cut, int64_t rank) const {
    if (!cut.is_shard() || !has(cut.dim())) return offset;
    return shifted(offset, offset_of(cut.partition, rank), cut.dim() == dim1);
  }
};

/// A piece that the diagonal misses has one of no elements: LibTorch says so for offsets beyond.
std::optional<Decision> diagonal(const OpCall& call) {
  const auto& input = call.tensor(0);
  const Diagonal whole(call, input.sizes(), 1);
  Decision decision;
  decision.inputs.push_back(input.layout());
  decision.outputs.push_back(whole.output(input.layout(), input.ndim()));
  decision.arguments.emplace_back(1, whole.local_offset(input.layout(), call.mesh().rank()));
  return decision;
}

/// diagonal_backward(gradient, input_sizes, offset, dim1, dim2): zeros around the diagonal.
std::optional<Decision> diagonal_backward(const OpCall& call) {
  const auto sizes = call.integers(1);
  const auto ndim = static_cast<int64_t>(sizes.size());
  const Diagonal whole(call, sizes, 2);
  const auto remembered = remembered_layout(call.mesh(), sizes);
  const Layout layout = remembered && !remembered->is_partial() ? *remembered : Layout();
  const int64_t rank = call.mesh().rank();
  Decision decision;
  decision.inputs.push_back(whole.output(layout, ndim));
  decision.outputs.push_back(layout);
  decision.arguments.emplace_back(1, local_sizes(sizes, layout, rank));
  decision.arguments.emplace_back(2, whole.local_offset(layout, rank));
  return decision;
}

/// Of a piece of the diagonal, the rows that it lies in; the first rank also has those above all,
/// the last one those below.
Decision rows_of_diagonal(const OpCall& call, int64_t dim1, int64_t dim2) {
  const auto& input = call.tensor(0);
  const int64_t offset = call.integer(1);
  const int64_t rank = call.mesh().rank();
  const int64_t above = std::max<int64_t>(-offset, 0);
  Partition rows = input.layout().partition;
  rows.front() += above;
  rows.back() += std::max<int64_t>(offset, 0);
  Decision decision;
  decision.inputs.push_back(input.layout());
  decision.outputs.emplace_back(Shard(dim1), rows);
  const int64_t size = input.layout().partition[static_cast<size_t>(rank)];
  const int64_t left = offset_of(input.layout().partition, rank) + std::max<int64_t>(offset, 0);
  const int64_t top = rank == 0 ? above : 0;
  std::vector<int64_t> padding(static_cast<size_t>(2 * (input.ndim() + 1)), 0);
  const auto pad = [&](int64_t dim, int64_t before, int64_t after) {
    const auto place = static_cast<size_t>(2 * (input.ndim() - dim));
    padding[place] = before;
    padding[place + 1] = after;
  };
  pad(dim1, top, rows[static_cast<size_t>(rank)] - size - top);
  pad(dim2, left, total_of(rows) - size - left);
  decision.local = [=](c10::ArrayRef<c10::IValue> arguments) {
    const Tensor piece = at::diag_embed(arguments[0].toTensor(), 0, dim1, dim2);
    return std::vector<c10::IValue>{at::constant_pad_nd(piece, padding)};
  };
  return decision;
}

/// diag_embed(self, offset, dim1, dim2): the last dim becomes a diagonal.
std::optional<Decision> diag_embed(const OpCall& call) {
  const auto& input = call.tensor(0);
  const int64_t ndim = input.ndim() + 1;
  const int64_t dim1 = call.dim(2, ndim);
  const int64_t dim2 = call.dim(3, ndim);
  const Layout cut = input.layout();
  if (cut.is_shard() && cut.dim() == input.ndim() - 1 && dim1 != dim2) {
    return rows_of_diagonal(call, dim1, dim2);
  }
  Decision decision;
  decision.inputs.push_back(cut);
  if (cut.is_shard()) {  // the dims that remain, in order
    std::vector<int64_t> others;
    for (int64_t d = 0; d < ndim; ++d) {
      if (d != dim1 && d != dim2) others.push_back(d);
    }
    decision.outputs.push_back(cut.moved_to(others[static_cast<size_t>(cut.dim())]));
    return decision;
  }
  decision.outputs.push_back(cut);
  return decision;
}

// ---- above autograd, made of these

Tensor trace(const Tensor& x) {
  check<SpecMismatch>(x.dim() == 2, "trace", "got ", x.sizes(), "; expected a matrix.");
  return at::diagonal(x).sum();
}

Tensor diagonal_scatter(const Tensor& x, const Tensor& values, int64_t offset, int64_t dim1,
                        int64_t dim2) {
  const auto& mesh = mesh_of(is_shard_tensor(x) ? x : values);
  Tensor result = promote(x, mesh).clone();
  result.diagonal(offset, dim1, dim2).copy_(values);
  return result;
}

}  // namespace

SHARD_PATCH(diagonals) {
  for (const char* op : {"aten::tril", "aten::triu", "aten::tril_", "aten::triu_"}) {
    patch.rule(op, triangle).shards("any dim");
  }
  patch.remembering_rule("aten::diagonal", diagonal).shards("any dim");
  patch.remembering_rule("aten::diagonal_copy", diagonal).shards("any dim");
  patch.sized_rule("aten::diagonal_backward", diagonal_backward).shards("any dim");
  patch.rule("aten::diag_embed", diag_embed).shards("any dim").notes("along the last: moves");
  patch.function<at::_ops::trace>(trace).shards("any dim");
  patch.function<at::_ops::diagonal_scatter>(diagonal_scatter).shards("any dim");
}

}  // namespace shard
