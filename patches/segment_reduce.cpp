// SPDX-License-Identifier: Apache-2.0
// Reductions of consecutive rows: segment s is the next lengths[s] rows. Where the rows are cut, a
// segment may lie on several ranks: every row is numbered by its segment and goes, reduced with its
// neighbours, to the rank that owns the segment's result (patches/row_indexing.cpp).
#include <ATen/ops/arange.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/segment_reduce.h>
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

Tensor segment_reduce(const Tensor& data, std::string_view reduce,
                      const std::optional<Tensor>& lengths, const std::optional<Tensor>& indices,
                      const std::optional<Tensor>& offsets, int64_t axis, bool unsafe,
                      const std::optional<at::Scalar>& initial) {
  const auto& mesh = mesh_of(is_shard_tensor(data) ? data : lengths ? *lengths : *offsets);
  auto input = sharded_input(promote(data, mesh));
  const bool is_by_rows =
      axis == 0 && (lengths ? lengths->dim() == 1 : offsets && offsets->dim() == 1);
  if (!is_by_rows || indices) {
    refuse_op(kOp, c10::str("axis ", axis), "lengths or offsets of one dim, along dim 0");
  }
  const Tensor ends = segment_ends(lengths, offsets);
  if (input.dim == 0 && mesh.size() > 1) {
    const bool fits =
        ends.numel() > 0 ? ends[-1].item<int64_t>() == data.size(0) : data.size(0) == 0;
    check<SpecMismatch>(unsafe || fits, kOp, "got lengths that do not add up to the ", data.size(0),
                        " rows; expected their sum. Correct the lengths.");
    return reduce_cut_rows(input, reduce, ends, initial);
  }
  const Tensor whole_lengths = at::diff(ends, 1, 0, ends.new_zeros({1}));
  const Tensor y = at::segment_reduce(to_local(input.tensor), reduce, whole_lengths, std::nullopt,
                                      std::nullopt, axis, unsafe, initial);
  return from_window(y, input, input.dim == 0 ? Partition{y.size(0)} : input.spec->partition());
}

}  // namespace

SHARD_PATCH(segment_reduce) {
  patch.function<at::_ops::segment_reduce>(segment_reduce)
      .shards("any dim")
      .notes("lengths or offsets of one dim, along dim 0; results are evenly cut");
}

}  // namespace shard
