// SPDX-License-Identifier: Apache-2.0
// Adaptive average and max pooling over a tensor sharded in space, channels or batch. (Pooling to
// one point is a mean in LibTorch already; area interpolation is adaptive average pooling.)
//
// NOTE [Partial windows]
// A window may be as large as the whole dim, so its rows are not brought together. Every rank pools
// the part of each window that it owns; the owner of the output row, who has the window's first
// row, gets these parts, one row each, and puts them together. Between windows that no boundary
// cuts nothing is sent.
#include <ATen/native/AdaptivePooling.h>
#include <ATen/ops/_adaptive_avg_pool2d.h>
#include <ATen/ops/_adaptive_avg_pool3d.h>
#include <ATen/ops/adaptive_max_pool2d.h>
#include <ATen/ops/adaptive_max_pool3d.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/take.h>
#include <ATen/ops/tensor.h>
#include <shard/window_patch.h>

#include <algorithm>
#include <set>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;
/// The values, and for max pooling the indices, of some output rows.
using Pooled = std::vector<Tensor>;

/// Windows along the sharded dim.
struct AdaptiveWindows {
  int64_t n, out;

  Rows window(int64_t o) const {
    return {at::native::start_index(o, out, n), at::native::end_index(o, out, n)};
  }
  /// The windows that have any of `rows`.
  Rows meeting(const Rows& rows) const {
    if (rows.size() == 0) return {0, 0};
    return {rows.begin * out / n, (rows.end * out + n - 1) / n};
  }
  Partition output_partition(const Partition& input) const {
    return partition_outputs(input, out, [&](int64_t row) { return (row * out + n - 1) / n; });
  }
};

std::vector<Rows> intervals(const Partition& partition) {
  std::vector<Rows> result;
  int64_t begin = 0;
  for (const int64_t size : partition) {
    result.push_back({begin, begin + size});
    begin += size;
  }
  return result;
}

/// Who pools which parts of windows, and who gets them: rank r's parts are the rows
/// [offset_of(parts, r), ...) of a tensor that exists for the exchange only.
struct PartialWindows {
  AdaptiveWindows windows;
  Partition output;
  std::vector<Rows> owned, met;            ///< per rank: input rows, and windows that have any
  std::vector<std::vector<Rows>> sources;  ///< per rank: its outputs, by the rank that sends parts
  HaloPlan plan;

  PartialWindows(const AdaptiveWindows& windows, int64_t dim, const Partition& input)
      : windows(windows), output(windows.output_partition(input)), owned(intervals(input)) {
    Partition parts;
    for (const Rows& rows : owned) {
      met.push_back(windows.meeting(rows));
      parts.push_back(met.back().size());
    }
    std::vector<std::vector<Rows>> wanted;
    for (const Rows& out : intervals(output)) {
      wanted.emplace_back();
      sources.emplace_back();
      int64_t offset = 0;
      for (const Rows& from : met) {
        const Rows common{std::max(out.begin, from.begin), std::min(out.end, from.end)};
        if (common.size() > 0) {
          sources.back().push_back(common);
          const int64_t shift = offset - from.begin;
          wanted.back().push_back({common.begin + shift, common.end + shift});
        }
        offset += from.size();
      }
    }
    plan = make_halo_plan(dim, parts, wanted);
  }

  /// The parts of windows that `rank` owns, counted in its own rows.
  std::vector<Rows> local_windows(int64_t rank) const {
    const Rows own = owned[static_cast<size_t>(rank)];
    const Rows out = met[static_cast<size_t>(rank)];
    std::vector<Rows> result;
    for (int64_t o = out.begin; o < out.end; ++o) {
      const Rows whole = windows.window(o);
      result.push_back(
          {std::max(whole.begin, own.begin) - own.begin, std::min(whole.end, own.end) - own.begin});
    }
    return result;
  }
};

/// Rows on which LibTorch's windows, counted from the first row, are the ones wanted.
struct SpreadRows {
  Tensor rows;
  std::vector<int64_t> source;  ///< of each row; empty: they are the own rows
  std::vector<int64_t> sizes;   ///< rows of each window, filling included
};

bool are_native(const std::vector<Rows>& windows, int64_t rows) {
  const AdaptiveWindows native{rows, static_cast<int64_t>(windows.size())};
  for (size_t o = 0; o < windows.size(); ++o) {
    const Rows window = native.window(static_cast<int64_t>(o));
    if (window.begin != windows[o].begin || window.end != windows[o].end) return false;
  }
  return true;
}

/// Otherwise the windows are laid out one after another, equally long: `fill` takes the place of
/// missing rows; without it a window's last row is repeated.
SpreadRows spread(const Tensor& own, int64_t dim, const std::vector<Rows>& windows,
                  std::optional<at::Scalar> fill) {
  const int64_t n = own.size(dim);
  SpreadRows result{own, {}, {}};
  int64_t longest = 0;
  for (const Rows& window : windows) {
    result.sizes.push_back(window.size());
    longest = std::max(longest, window.size());
  }
  if (are_native(windows, n)) return result;
  bool is_filled = false;
  for (auto& size : result.sizes) {
    is_filled |= fill && size < longest;
    size = longest;
  }
  for (const Rows& window : windows) {
    for (int64_t row = window.begin; row < window.begin + longest; ++row) {
      result.source.push_back(row < window.end ? row : fill ? n : window.end - 1);
    }
  }
  if (is_filled) result.rows = join({own, fill_rows(own, dim, 1, *fill)}, dim);
  result.rows =
      result.rows.index_select(dim, at::tensor(result.source, own.options().dtype(at::kLong)));
  return result;
}

/// The output rows of `ranges`, which overlap in windows that a boundary cuts, put together.
template <class Merge>
Pooled merged(const std::vector<Rows>& ranges, const std::vector<Pooled>& pieces, int64_t dim,
              const Merge& merge) {
  std::set<int64_t> cuts;
  for (const Rows& range : ranges) cuts.insert({range.begin, range.end});
  std::vector<std::vector<Tensor>> columns(pieces[0].size());
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    const int64_t size = *std::next(cut) - *cut;
    Pooled result;
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].begin > *cut || ranges[i].end <= *cut) continue;
      Pooled piece;
      for (const Tensor& t : pieces[i])
        piece.push_back(t.size(dim) == size ? t : t.narrow(dim, *cut - ranges[i].begin, size));
      result = result.empty() ? piece : merge(result, piece);
    }
    for (size_t i = 0; i < columns.size(); ++i) columns[i].push_back(result[i]);
  }
  Pooled result;
  for (const auto& column : columns) result.push_back(join(column, dim));
  return result;
}

/// A call of an adaptive pooling op.
struct AdaptivePooling {
  ShardedInput input;
  IntArrayRef size;
  int64_t rank() const { return input.mesh.rank(); }

  AdaptivePooling(const char* op, const Tensor& x, IntArrayRef size)
      : input(window_input(op, x, static_cast<int64_t>(size.size()), true)), size(size) {
    const auto is_positive = [](int64_t n) { return n > 0; };
    const auto space = x.sizes().slice(static_cast<size_t>(x.dim()) - size.size());
    check<SpecMismatch>(!input.is_cut() || (std::all_of(size.begin(), size.end(), is_positive) &&
                                            std::all_of(space.begin(), space.end(), is_positive)),
                        op, "got an input of ", x.sizes(), " to pool to ", size,
                        "; expected positive spatial sizes. Correct the sizes.");
  }
  PartialWindows partial_windows() const {
    const auto n = input.spec->global_shape()[static_cast<size_t>(input.dim)];
    return {{n, size[static_cast<size_t>(input.spatial)]}, input.dim, input.spec->partition()};
  }
  /// What the local op is asked for.
  std::vector<int64_t> local_size(size_t windows) const {
    return with_entry(size.vec(), input.spatial, static_cast<int64_t>(windows));
  }
  /// `pool(own rows, windows)` on this rank's rows, or, dropped, on a dummy row: NOTE [Idle ranks].
  template <class Pool>
  Pooled pool_own(const PartialWindows& partial, const Pool& pool) const {
    const auto windows = partial.local_windows(rank());
    const Tensor own = to_local(input.tensor);
    if (!windows.empty()) return pool(own, windows);
    const Tensor dummy = join({own, fill_rows(own, input.dim, 1)}, input.dim);
    Pooled result = pool(dummy, std::vector<Rows>{{0, 1}});
    for (auto& t : result) t = t.narrow(input.dim, 0, 0);
    return result;
  }
  template <class Merge>
  Pooled put_together(const PartialWindows& partial, const Pooled& own, const Merge& merge) const {
    const auto& ranges = partial.sources[static_cast<size_t>(rank())];
    std::vector<Pooled> pieces(ranges.size());
    Pooled nothing;
    for (const Tensor& t : own) {
      const Halo halo = exchange_halo(t, partial.plan, input.mesh);
      const auto parts = wanted_pieces(halo, partial.plan, rank());
      for (size_t i = 0; i < ranges.size(); ++i) pieces[i].push_back(parts[i]);
      nothing.push_back(halo.own.narrow(input.dim, 0, 0));  // the exchange is in every rank's graph
    }
    return ranges.empty() ? nothing : merged(ranges, pieces, input.dim, merge);
  }
  Tensor wrap(const Tensor& y, const PartialWindows& partial) const {
    return from_window(y.contiguous(input.tensor.suggest_memory_format()), input, partial.output);
  }
};

// ---- averages

/// What a rank's mean over its part of a window (`sizes` rows, filling with zeros included) counts
/// in the mean over the whole window. Undefined where all are 1.
Tensor shares(const PartialWindows& partial, int64_t first, const std::vector<int64_t>& sizes,
              const Tensor& y, int64_t dim) {
  std::vector<double> values;
  for (const int64_t size : sizes) {
    const Rows window = partial.windows.window(first++);
    values.push_back(static_cast<double>(size) / static_cast<double>(window.size()));
  }
  if (std::all_of(values.begin(), values.end(), [](double value) { return value == 1; })) return {};
  Shape shape(static_cast<size_t>(y.dim()), 1);
  shape[static_cast<size_t>(dim)] = static_cast<int64_t>(values.size());
  const auto type = y.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::tensor(values, y.options().dtype(type)).view(shape);
}

template <class Op>
Tensor adaptive_average(const Tensor& x, IntArrayRef size) {
  const AdaptivePooling pooling(Op::name, x, size);
  const auto& input = pooling.input;
  const auto local_op = [](const Tensor& t, IntArrayRef local_size) {
    return Op::call(t, c10::fromIntArrayRefSlow(local_size));
  };
  if (!input.is_cut()) {
    const auto rows = own_rows(input);
    return from_rows(local_op(rows.rows, size), input, rows);
  }
  const auto partial = pooling.partial_windows();
  const int64_t first = partial.met[static_cast<size_t>(pooling.rank())].begin;
  const Pooled own = pooling.pool_own(partial, [&](const Tensor& t, const auto& windows) {
    const auto rows = spread(t, input.dim, windows, 0);
    Tensor y = local_op(rows.rows, pooling.local_size(windows.size()));
    // Parts of half types are added in float.
    if (partial.plan.communicates() && y.scalar_type() != at::kDouble) y = y.to(at::kFloat);
    const Tensor factors = shares(partial, first, rows.sizes, y, input.dim);
    return Pooled{factors.defined() ? (y * factors).to(y.scalar_type()) : y};
  });
  const auto sum = [](const Pooled& a, const Pooled& b) { return Pooled{a[0] + b[0]}; };
  const Tensor y = pooling.put_together(partial, own, sum)[0];
  return pooling.wrap(y.to(x.scalar_type()), partial);
}

// ---- maxima

/// `indices` count in `rows`; the result counts in the whole tensor.
Tensor in_the_whole(const Tensor& indices, const ShardedInput& input, const SpreadRows& rows) {
  return global_indices(
      indices, input.tensor, input.dim, rows.rows.size(input.dim), [&](const Tensor& row) {
        const Tensor own =
            rows.source.empty() ? row : at::take(at::tensor(rows.source, indices.options()), row);
        return own + input.spec->offset(input.mesh.rank());
      });
}

Pooled larger_of(const Pooled& a, const Pooled& b) {
  const Maxima result = larger({a[0], a[1]}, {b[0], b[1]});
  return {result.values, result.indices};
}

template <class Op>
std::tuple<Tensor, Tensor> adaptive_max(const Tensor& x, IntArrayRef size) {
  const AdaptivePooling pooling(Op::name, x, size);
  const auto& input = pooling.input;
  if (!input.is_cut()) {
    const auto rows = own_rows(input);
    const auto [y, indices] = Op::call(rows.rows, size);
    return {from_rows(y, input, rows), from_rows(indices, input, rows)};
  }
  const auto partial = pooling.partial_windows();
  const Pooled own = pooling.pool_own(partial, [&](const Tensor& t, const auto& windows) {
    const auto rows = spread(t, input.dim, windows, std::nullopt);
    const auto [y, indices] = Op::call(rows.rows, pooling.local_size(windows.size()));
    return Pooled{y, in_the_whole(indices, input, rows)};
  });
  const auto result = pooling.put_together(partial, own, larger_of);
  return {pooling.wrap(result[0], partial), pooling.wrap(result[1], partial)};
}

}  // namespace

SHARD_PATCH(adaptive_pooling) {
  const auto add = [](PatchRegistrar::Listing listing) {
    listing.shards("batch", "channels", "spatial");
  };
  namespace ops = at::_ops;
  add(patch.function<ops::_adaptive_avg_pool2d>(adaptive_average<ops::_adaptive_avg_pool2d>));
  add(patch.function<ops::_adaptive_avg_pool3d>(adaptive_average<ops::_adaptive_avg_pool3d>));
  add(patch.function<ops::adaptive_max_pool2d>(adaptive_max<ops::adaptive_max_pool2d>));
  add(patch.function<ops::adaptive_max_pool3d>(adaptive_max<ops::adaptive_max_pool3d>));
}

}  // namespace shard
