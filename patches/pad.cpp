// SPDX-License-Identifier: Apache-2.0
// Padding and cropping of any dims, in all of LibTorch's modes. aten::pad and aten::_pad_enum
// decompose into these ops.
//
// NOTE [Where padded rows live]
// Padding before the first row belongs to the first rank that has rows, padding after the last row
// to the last one. So constant and replicate padding send nothing, reflections only where a shard
// is smaller than the padding, and circular padding moves the wrapped rows only.
#include <ATen/ops/_pad_circular.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/reflection_pad1d.h>
#include <ATen/ops/reflection_pad2d.h>
#include <ATen/ops/reflection_pad3d.h>
#include <ATen/ops/replication_pad1d.h>
#include <ATen/ops/replication_pad2d.h>
#include <ATen/ops/replication_pad3d.h>
#include <c10/util/strides.h>
#include <shard/box_patch.h>
#include <shard/memory_order.h>

#include <algorithm>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;

enum class Mode : uint8_t { Constant, Reflect, Replicate, Circular };

/// Consecutive output rows and the input rows they come from.
struct Piece {
  int64_t rows = 0;  ///< of the output
  Rows source;       ///< none: filled with a constant; fewer than `rows`: one row repeated
  bool is_reversed = false;
};

/// Padding (negative: cropping) of the sharded dim.
struct Padding {
  Mode mode;
  int64_t n, before, after;

  int64_t total() const { return n + before + after; }
  /// The output rows that are input rows.
  Rows kept() const {
    return {std::max<int64_t>(before, 0), total() - std::max<int64_t>(after, 0)};
  }

  Partition output_partition(const Partition& input) const {
    return partition_outputs(input, total(), [&](int64_t row) { return row + before; });
  }
  std::vector<Piece> pieces(const Rows& out) const {
    const Rows middle = kept();
    std::vector<Piece> result;
    const auto add = [&](const Rows& range, auto source) {
      const Rows rows{std::max(range.begin, out.begin), std::min(range.end, out.end)};
      if (rows.size() > 0) result.push_back(source(rows));
    };
    add({0, middle.begin}, [&](const Rows& rows) { return below(rows); });
    add(middle, [&](const Rows& rows) { return copied(rows, -before); });
    add({middle.end, total()}, [&](const Rows& rows) { return above(rows); });
    return result;
  }

 private:
  static Piece copied(const Rows& rows, int64_t shift) {
    return {rows.size(), {rows.begin + shift, rows.end + shift}};
  }
  static Piece mirrored(const Rows& rows,
                        int64_t sum) {  // output row o comes from input row sum - o
    return {rows.size(), {sum - rows.end + 1, sum - rows.begin + 1}, true};
  }
  static Piece repeated(const Rows& rows, int64_t source) {
    return {rows.size(), {source, source + 1}};
  }

  Piece below(const Rows& rows) const {
    switch (mode) {
      case Mode::Reflect:
        return mirrored(rows, before);
      case Mode::Replicate:
        return repeated(rows, 0);
      case Mode::Circular:
        return copied(rows, kept().size() - before);
      default:
        return {rows.size(), {}};
    }
  }
  Piece above(const Rows& rows) const {
    switch (mode) {
      case Mode::Reflect:
        return mirrored(rows, 2 * (n - 1) + before);
      case Mode::Replicate:
        return repeated(rows, n - 1);
      case Mode::Circular:
        return copied(rows, -before - kept().size());
      default:
        return {rows.size(), {}};
    }
  }
};

/// What LibTorch checks, in global sizes.
void check_padding(const char* op, int64_t dim, const Padding& padding) {
  const int64_t largest = std::max(padding.before, padding.after);
  const auto expect = [&](bool ok, const char* expected) {
    check<SpecMismatch>(ok, op, "got padding (", padding.before, ", ", padding.after, ") of ",
                        padding.n, " rows along dim ", dim, "; expected ", expected,
                        ". Pad or crop less.");
  };
  expect(-padding.before <= padding.n && -padding.after <= padding.n && padding.total() >= 0,
         "to crop no more rows than there are");
  if (padding.mode == Mode::Constant) return;
  expect(padding.total() > 0, "at least one row to be left");
  if (padding.mode == Mode::Reflect) expect(largest < padding.n, "less than the number of rows");
  if (padding.mode == Mode::Circular) {
    expect(largest <= padding.kept().size(), "at most the number of rows (wrapping around once)");
  }
}

/// The tensors that make up `pieces`, in order; `segments` holds their source rows.
std::vector<Tensor> realise(const std::vector<Piece>& pieces, const std::vector<Tensor>& segments,
                            const Tensor& like, int64_t dim, const at::Scalar& fill) {
  std::vector<Tensor> result;
  auto next = segments.begin();
  for (const auto& piece : pieces) {
    if (piece.source.size() == 0) {
      result.push_back(fill_rows(like, dim, piece.rows, fill));
      continue;
    }
    const auto first = next;
    for (int64_t rows = 0; rows < piece.source.size(); ++next) rows += next->size(dim);
    if (piece.is_reversed) {
      for (auto source = next; source != first;) result.push_back((--source)->flip(dim));
    } else if (piece.source.size() < piece.rows) {
      Shape shape(first->sizes().begin(), first->sizes().end());
      shape[static_cast<size_t>(dim)] = piece.rows;
      result.push_back(first->expand(shape));
    } else {
      result.insert(result.end(), first, next);
    }
  }
  return result;
}

/// Padding of a cut dim, of every place along it.
struct PaddedCut {
  Partition output;
  std::vector<std::vector<Piece>> pieces;
  std::vector<std::vector<Rows>> wanted;

  PaddedCut(const Padding& padding, const Partition& owned)
      : output(padding.output_partition(owned)) {
    int64_t begin = 0;
    for (const int64_t size : output) {
      pieces.push_back(padding.pieces({begin, begin + size}));
      auto& rows = wanted.emplace_back();
      for (const auto& piece : pieces.back()) {
        if (piece.source.size() > 0) rows.push_back(piece.source);
      }
      begin += size;
    }
  }
};

struct Padded {
  Tensor rows;
  std::map<int64_t, Partition> output;
};
Padded pad_cut_dims(const BoxInput& input, const std::vector<PaddedCut>& cuts,
                    const at::Scalar& fill) {
  std::vector<std::vector<std::vector<Rows>>> wanted;
  Padded result;
  for (size_t i = 0; i < cuts.size(); ++i) {
    wanted.push_back(cuts[i].wanted);
    result.output[input.cuts()[i].dim] = cuts[i].output;
  }
  const auto plan = input.plan(wanted);
  const auto arrange = [&](size_t i, const std::vector<Tensor>& segments, const Tensor& like) {
    const Cut& cut = input.cuts()[i];
    const auto& pieces = cuts[i].pieces[static_cast<size_t>(input.place(cut))];
    auto parts = realise(pieces, segments, like, cut.dim, fill);
    // The graph of every rank contains the exchange, also where only filled rows are left.
    if (segments.empty()) parts.push_back(like.narrow(cut.dim, 0, 0));
    return join(parts, cut.dim);
  };
  result.rows = input.assemble(input.exchange(plan), plan, arrange);
  return result;
}

/// `pad` counts from the last dim: where the padding of a dim begins in it.
size_t entry_of(const Tensor& x, int64_t dim) {
  return static_cast<size_t>(2 * (x.dim() - 1 - dim));
}

std::vector<int64_t> padded_dims(const Tensor& x, IntArrayRef pad) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    const size_t entry = entry_of(x, dim);
    if (entry + 1 < pad.size() && (pad[entry] != 0 || pad[entry + 1] != 0)) dims.push_back(dim);
  }
  return dims;
}

/// What is joined of pieces lies as they happen to, which may differ from rank to rank. LibTorch's
/// kernels keep channels last and give others contiguous.
Tensor as_kernels_lay_out(const Tensor& y, const Tensor& x) {
  switch (x.suggest_memory_format()) {
    case at::MemoryFormat::ChannelsLast:
      return in_order(y, c10::get_channels_last_strides_2d(x.sizes()));
    case at::MemoryFormat::ChannelsLast3d:
      return in_order(y, c10::get_channels_last_strides_3d(x.sizes()));
    default:
      return in_order(y, c10::contiguous_strides(x.sizes()));
  }
}

/// The cut dims by an exchange, the others by `local_op`.
template <class LocalOp>
Tensor pad_box(const char* op, const Tensor& x, IntArrayRef pad, Mode mode, const at::Scalar& fill,
               const LocalOp& local_op) {
  const BoxInput input(x, padded_dims(x, pad));
  auto others = pad.vec();
  std::vector<PaddedCut> cuts;
  for (const Cut& cut : input.cuts()) {
    const size_t entry = entry_of(x, cut.dim);
    const Padding padding{mode, input.size(cut), pad[entry], pad[entry + 1]};
    check_padding(op, cut.dim, padding);
    cuts.emplace_back(padding, cut.owned);
    others[entry] = others[entry + 1] = 0;
  }
  auto [rows, output] = pad_cut_dims(input, cuts, fill);
  const bool only_cut_dims =
      std::all_of(others.begin(), others.end(), [](int64_t size) { return size == 0; });
  Tensor y = rows;
  if (!only_cut_dims) {
    auto empty = input.empty_dims();
    for (const Cut& cut : input.cuts()) {
      if (rows.size(cut.dim) == 0) empty.push_back(cut.dim);
    }
    y = with_made_up(rows, empty, [&](const Tensor& t) { return local_op(t, others); });
  } else if (rows.is_alias_of(input.local())) {
    y = rows.clone();  // padding makes a new tensor, also on ranks where nothing is added
  }
  return input.wrapped(as_kernels_lay_out(y, x), output);
}

/// `local_op(tensor, pad)` is LibTorch's own op. `pad` counts from the last dim: (before, after) of
/// each.
template <class LocalOp>
Tensor pad_with(const char* op, const Tensor& x, IntArrayRef pad, Mode mode, const at::Scalar& fill,
                const LocalOp& local_op) {
  const auto input = sharded_input(x);
  const auto dims = padded_dims(x, pad);
  if (input.mesh.size() > 1 && std::find(dims.begin(), dims.end(), input.dim) != dims.end())
    return pad_box(op, input.tensor, pad, mode, fill, local_op);
  const auto rows = own_rows(input);
  return from_rows(local_op(rows.rows, pad), input, rows);
}

Tensor constant_pad(const Tensor& x, IntArrayRef pad, const at::Scalar& value) {
  constexpr const char* kOp = "aten::constant_pad_nd";
  check<SpecMismatch>(pad.size() % 2 == 0 && static_cast<int64_t>(pad.size()) <= 2 * x.dim(), kOp,
                      "got ", pad.size(), " padding values for ", x.dim(),
                      " dims; expected two a dim, the last dim first. "
                      "Correct the list.");
  return pad_with(kOp, x, pad, Mode::Constant, value, [&](const Tensor& t, IntArrayRef sizes) {
    return at::constant_pad_nd(t, sizes, value);
  });
}

template <class Op, Mode mode, size_t dims>
Tensor pad_spatial(const Tensor& x, IntArrayRef pad) {
  const auto ndim = static_cast<size_t>(x.dim());
  check<SpecMismatch>(pad.size() == 2 * dims && (ndim == dims + 1 || ndim == dims + 2), Op::name,
                      "got ", pad.size(), " padding values for an input of ", x.sizes(),
                      "; expected ", 2 * dims, " for ", dims + 1, " or ", dims + 2,
                      " dims. Correct the list or the input's dims.");
  return pad_with(Op::name, x, pad, mode, 0, [](const Tensor& t, IntArrayRef sizes) {
    return Op::call(t, c10::fromIntArrayRefSlow(sizes));
  });
}

Tensor pad_circular(const Tensor& x, IntArrayRef pad) {
  const auto expected = static_cast<size_t>(2 * std::max<int64_t>(x.dim() - 2, 0));
  check<SpecMismatch>(pad.size() == expected, "aten::_pad_circular", "got ", pad.size(),
                      " padding values for an input of ", x.sizes(), "; expected ", expected,
                      " (two a spatial dim). Correct the list.");
  return pad_with("aten::_pad_circular", x, pad, Mode::Circular, 0,
                  [](const Tensor& t, IntArrayRef sizes) { return at::_pad_circular(t, sizes); });
}

}  // namespace

SHARD_PATCH(pad) {
  namespace ops = at::_ops;
  const auto add = [](PatchRegistrar::Listing listing) {
    listing.shards("any dim, padded or not");
  };
  add(patch.function<ops::constant_pad_nd>(constant_pad));
  add(patch.function<ops::_pad_circular>(pad_circular));
  add(patch.function<ops::reflection_pad1d>(pad_spatial<ops::reflection_pad1d, Mode::Reflect, 1>));
  add(patch.function<ops::reflection_pad2d>(pad_spatial<ops::reflection_pad2d, Mode::Reflect, 2>));
  add(patch.function<ops::reflection_pad3d>(pad_spatial<ops::reflection_pad3d, Mode::Reflect, 3>));
  add(patch.function<ops::replication_pad1d>(
      pad_spatial<ops::replication_pad1d, Mode::Replicate, 1>));
  add(patch.function<ops::replication_pad2d>(
      pad_spatial<ops::replication_pad2d, Mode::Replicate, 2>));
  add(patch.function<ops::replication_pad3d>(
      pad_spatial<ops::replication_pad3d, Mode::Replicate, 3>));
}

}  // namespace shard
