// SPDX-License-Identifier: Apache-2.0
// Reductions of consecutive rows: segment s is the next lengths[s] rows. Where the rows are cut, a
// segment may lie on several ranks: every row is numbered by its segment and goes, reduced with its
// neighbours, to the rank that owns the segment's result (patches/row_indexing.cpp). Along a later
// dim, with lengths of its own for every index of the dims before, a cut moves to another dim.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/segment_reduce.h>
#include <shard/bottom.h>
#include <shard/patch.h>
#include <shard/route.h>
#include <shard/window_patch.h>

#include <limits>
#include <string>

namespace shard {
namespace {

using at::Tensor;

constexpr const char* kOp = "aten::segment_reduce";

/// How an op reduces: the name that index_reduce has for it, and what an empty segment gives.
struct Reduction {
  std::string_view name;
  double start;

  static Reduction of(std::string_view reduce) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (reduce == "max") return {"amax", -kInfinity};
    if (reduce == "min") return {"amin", kInfinity};
    if (reduce == "prod") return {"prod", 1};
    check<SpecMismatch>(reduce == "sum" || reduce == "mean", kOp, "got the reduction '", reduce,
                        "'; expected sum, mean, max, min or prod. Correct the name.");
    return {reduce, 0};
  }
  bool is_sum() const { return name == "sum" || name == "mean"; }
};

/// Where every segment ends, whole on every rank.
Tensor segment_ends(const std::optional<Tensor>& lengths, const std::optional<Tensor>& offsets) {
  if (lengths) return plain_numbers(*lengths).cumsum(-1);
  const Tensor bounds = plain_numbers(*offsets);
  return bounds.narrow(-1, 1, bounds.size(-1) - 1);
}

/// The segment of each of this rank's rows, cut like the rows.
Tensor segment_of_rows(const ShardedInput& data, const Tensor& ends) {
  const int64_t rank = data.mesh.rank();
  const int64_t begin = data.spec->offset(rank);
  const Tensor rows =
      at::arange(begin, begin + data.spec->local_size(rank), ends.options().dtype(at::kLong));
  const Tensor segments = at::searchsorted(ends, rows, /*out_int32=*/false, /*right=*/true);
  return from_local(segments, data.mesh,
                    data.spec->with(Shard(0), {data.tensor.size(0)}, data.spec->partition()));
}

/// One row of `value` a segment, evenly cut.
Tensor start_of_segments(const ShardedInput& data, int64_t segments, double value) {
  Shape shape(data.tensor.sizes().begin(), data.tensor.sizes().end());
  shape[0] = segments;
  const auto spec = data.spec->with(Shard(0), shape, even_partition(segments, data.mesh.size()));
  return from_local(
      fill_rows(to_local(data.tensor).detach(), 0, spec->local_size(data.mesh.rank()), value),
      data.mesh, spec);
}

/// Divided by its number of rows; an empty segment has no mean (without `initial`).
Tensor mean_of(const Tensor& sums, const Tensor& ends, bool has_initial) {
  const Tensor lengths = at::diff(ends, 1, 0, ends.new_zeros({1}));
  auto sizes = std::vector<int64_t>(static_cast<size_t>(sums.dim()), 1);
  sizes[0] = -1;
  const Tensor counts = lengths.to(sums.scalar_type()).view(sizes);
  return has_initial ? sums / counts.clamp_min(1) : sums / counts;
}

Tensor reduce_cut_rows(const ShardedInput& data, std::string_view reduce, const Tensor& ends,
                       const std::optional<at::Scalar>& initial) {
  const auto reduction = Reduction::of(reduce);
  const double start = initial ? initial->toDouble() : reduction.start;
  const Tensor segments = segment_of_rows(data, ends);
  const Tensor results = start_of_segments(data, ends.size(0), start);
  if (!reduction.is_sum()) return results.index_reduce(0, segments, data.tensor, reduction.name);
  const Tensor sums = results.index_add(0, segments, data.tensor);
  return reduction.name == "mean" ? mean_of(sums, ends, initial.has_value()) : sums;
}

/// Every rank has whole segments: of some of the batch dims before `axis`, or of the dims after it.
Tensor reduce_whole_rows(const ShardedInput& data, std::string_view reduce, const Tensor& ends,
                         int64_t axis, bool unsafe, const std::optional<at::Scalar>& initial) {
  auto starts = ends.sizes().vec();
  starts.back() = 1;
  Tensor lengths = at::diff(ends, 1, -1, ends.new_zeros(starts));
  if (data.dim >= 0 && data.dim < axis) {
    const int64_t rank = data.mesh.rank();
    lengths = lengths.narrow(data.dim, data.spec->offset(rank), data.spec->local_size(rank));
  }
  const Tensor rows = to_local(data.tensor);
  Tensor y;
  if (lengths.numel() == 0 && rows.numel() == 0) {  // LibTorch looks for the smallest length
    auto sizes = rows.sizes().vec();
    sizes[static_cast<size_t>(axis)] = lengths.size(-1);
    y = rows.sum(axis, /*keepdim=*/true).expand(sizes).contiguous();
  } else {
    y = at::segment_reduce(rows, reduce, lengths.contiguous(), std::nullopt, std::nullopt, axis,
                           unsafe, initial);
  }
  return from_window(y, data, data.dim == axis ? Partition{y.size(axis)} : data.spec->partition());
}

Tensor segment_reduce(const Tensor& data, std::string_view reduce,
                      const std::optional<Tensor>& lengths, const std::optional<Tensor>& indices,
                      const std::optional<Tensor>& offsets, int64_t axis, bool unsafe,
                      const std::optional<at::Scalar>& initial) {
  const auto& mesh = mesh_of(is_shard_tensor(data) ? data : lengths ? *lengths : *offsets);
  if (indices) refuse_op(kOp, "indices", "lengths or offsets");
  const int64_t dim = at::maybe_wrap_dim(axis, data.dim());
  check<SpecMismatch>(
      (lengths ? lengths : offsets) && (lengths ? lengths : offsets)->dim() == dim + 1, kOp,
      "got data of ", data.sizes(), " along dim ", dim, "; expected lengths or offsets of ",
      dim + 1, " dims, one row for every index of the dims before. Correct them.");
  const auto leading = static_cast<size_t>(dim);
  check<SpecMismatch>(
      (lengths ? lengths : offsets)->sizes().slice(0, leading) == data.sizes().slice(0, leading),
      kOp, "got lengths or offsets of ", (lengths ? lengths : offsets)->sizes(), " for data of ",
      data.sizes(), "; expected the same sizes before dim ", dim, ". Correct them.");
  const Tensor ends = segment_ends(lengths, offsets);
  Tensor rows = promote(data, mesh);
  if (dim > 0) rows = with_whole_dim(rows, dim);
  const auto input = sharded_input(rows);
  if (dim == 0 && input.dim == 0 && mesh.size() > 1) {
    const int64_t total = ends.numel() > 0 ? ends[-1].item<int64_t>() : 0;
    check<SpecMismatch>(total == data.size(0) || (unsafe && total < data.size(0)), kOp,
                        "got lengths of ", total, " rows together for ", data.size(0),
                        "; expected their number. Correct the lengths.");
    const bool has_rest = total < data.size(0);  // rows that no segment has
    return reduce_cut_rows(has_rest ? sharded_input(input.tensor.narrow(0, 0, total)) : input,
                           reduce, ends, initial);
  }
  return reduce_whole_rows(input, reduce, ends, dim, unsafe, initial);
}

}  // namespace

SHARD_PATCH(segment_reduce) {
  patch.function<at::_ops::segment_reduce>(segment_reduce)
      .shards("any dim")
      .notes("results along dim 0 are evenly cut; a cut of a later dim moves to another one");
}

}  // namespace shard
