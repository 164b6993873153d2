// SPDX-License-Identifier: Apache-2.0
// Nearest and (bi-, tri-) linear interpolation. Each rank makes the output rows whose place in the
// input it owns.
//
// NOTE [Rows of an interpolation]
// Which input rows an output row is made of is decided in floating point, and LibTorch decides it
// in global coordinates: the same numbers are computed here by LibTorch's own functions. Its op on
// local rows counts from the shard's begin; where that gives the same rows and weights to the last
// bit (scale 2, 0.5, 1.5 ...) it runs on the local rows, else the rows are selected and weighted
// here and the op does the other dims.
#include <ATen/native/UpSample.h>
#include <ATen/ops/_upsample_nearest_exact1d.h>
#include <ATen/ops/_upsample_nearest_exact2d.h>
#include <ATen/ops/_upsample_nearest_exact3d.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_linear1d.h>
#include <ATen/ops/upsample_nearest1d.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/upsample_nearest3d.h>
#include <ATen/ops/upsample_trilinear3d.h>
#include <shard/box_patch.h>

#include <algorithm>
#include <cmath>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Scale = std::optional<double>;

enum class Mode : uint8_t { Nearest, NearestExact, Linear };

/// An output row is (1 - weight) * input row `low` + weight * input row `high`.
struct Taps {
  int64_t low = 0;
  int64_t high = 0;
  double weight = 0;
  bool operator==(const Taps&) const = default;
};

/// Interpolation along one dim.
struct Axis {
  Mode mode;
  bool align_corners;
  bool is_double;  ///< LibTorch computes in double, else in float
  int64_t in, out;
  Scale scale;  ///< as passed to the op
};

template <class Real>
Taps taps_in(const Axis& axis, int64_t o) {
  namespace lt = at::native;
  const Real ratio =
      lt::area_pixel_compute_scale<Real>(axis.in, axis.out, axis.align_corners, axis.scale);
  if (axis.mode == Mode::Linear) {
    Taps taps;
    Real weights[2];
    lt::compute_source_index_and_lambda<Real, Real>(taps.low, taps.high, weights[0], weights[1],
                                                    ratio, o, axis.in, axis.out,
                                                    axis.align_corners);
    taps.weight = weights[1];
    return taps;
  }
  const bool exact = axis.mode == Mode::NearestExact;
  const Real source =
      lt::area_pixel_compute_source_index<Real>(ratio, o, /*align_corners=*/!exact, false);
  const auto row =
      static_cast<int64_t>(std::floor(static_cast<float>(source + (exact ? 0.5 : 0.0))));
  return {std::min(row, axis.in - 1), std::min(row, axis.in - 1), 0};
}

Taps taps(const Axis& axis, int64_t o) {
  return axis.is_double ? taps_in<double>(axis, o) : taps_in<float>(axis, o);
}

/// The same by the formula of LibTorch's other kernel for nearest modes, which it uses for small
/// images, for channels last and in the backward.
Taps other_taps(const Axis& axis, int64_t o) {
  if (axis.mode == Mode::Linear) return taps(axis, o);
  const auto formula =
      axis.mode == Mode::Nearest ? &at::native::nearest_idx : &at::native::nearest_exact_idx;
  const int64_t row = formula(o, axis.in, axis.out, axis.scale);
  return {row, row, 0};
}

/// A call of an interpolation op.
struct Interpolation {
  const char* op;
  Mode mode;
  bool align_corners;
  IntArrayRef size;
  std::vector<Scale> scales;
  std::function<Tensor(const Tensor&, IntArrayRef, const std::vector<Scale>&)> local_op;

  Axis axis(const Tensor& x, size_t i) const {
    const bool is_double = x.scalar_type() == at::kDouble && (x.is_cpu() || mode == Mode::Linear);
    return {mode, align_corners, is_double, x.size(dim(i)), size[i], scales[i]};
  }
  /// Of the input, which has a batch and a channel dim: the spatial dim `i`.
  static int64_t dim(size_t i) { return static_cast<int64_t>(i) + 2; }
};

/// Whether LibTorch's CPU kernel for an output of `size` is the one of other_taps.
bool uses_other_kernel(const Tensor& x, IntArrayRef size) {
  if (!x.is_cpu()) return false;
  const bool many_channels = x.size(1) > 3;
  if (size.size() == 2) {
    return (many_channels && x.is_contiguous(at::MemoryFormat::ChannelsLast)) ||
           size[0] + size[1] <= 128;
  }
  return size.size() == 3 && many_channels && x.is_contiguous(at::MemoryFormat::ChannelsLast3d);
}

/// The part of an axis that a rank makes.
struct AxisPart {
  Axis axis;              ///< of the whole dim
  bool is_other = false;  ///< LibTorch's other kernel decides
  Rows out;               ///< output rows
  Rows in;                ///< input rows at hand; enough for `out`
  int64_t surplus = 0;    ///< output rows that LibTorch's op on `in` makes before `out`

  Taps wanted(int64_t o) const { return is_other ? other_taps(axis, o) : taps(axis, o); }
  bool is_identity() const {
    return axis.in == axis.out && in.size() == axis.in && axis.scale.value_or(1) == 1;
  }
  /// What LibTorch's op is asked for on `in`.
  Axis local() const {
    Axis result = axis;
    result.in = in.size();
    result.out = surplus + out.size();
    const double ratio = static_cast<double>(axis.out) / static_cast<double>(axis.in);
    if (in.size() != axis.in || result.out != axis.out)
      result.scale = axis.scale ? axis.scale : Scale(ratio);
    return result;
  }
  /// Whether LibTorch's op on `in` makes the rows wanted, whichever kernel it uses.
  bool is_native() const {
    const Axis own = local();
    for (int64_t o = out.begin; o < out.end; ++o) {
      const int64_t local_o = o - out.begin + surplus;
      for (auto taps : {taps(own, local_o), other_taps(own, local_o)}) {
        taps.low += in.begin;
        taps.high += in.begin;
        if (taps != wanted(o)) return false;
      }
    }
    return true;
  }
};

/// The rows that make up `out`. They begin at a multiple of the scale's period, if it has a short
/// one, so that LibTorch's op on them sees the same fractions.
AxisPart part_of(const Axis& axis, bool is_other, const Rows& out) {
  constexpr int64_t kLongestPeriod = 8;
  AxisPart part{axis, is_other, out, {0, 0}};
  if (out.size() == 0) return part;
  part.in = {part.wanted(out.begin).low, part.wanted(out.end - 1).high + 1};
  const double scale =
      axis.scale.value_or(static_cast<double>(axis.out) / static_cast<double>(axis.in));
  for (int64_t period = 1; period <= kLongestPeriod; ++period) {
    const double outputs = static_cast<double>(period) * scale;
    if (outputs < 1 || outputs != std::floor(outputs)) continue;
    int64_t begin = part.in.begin - part.in.begin % period;
    auto first = begin / period * static_cast<int64_t>(outputs);
    if (first > out.begin && begin >= period) {
      begin -= period;
      first -= static_cast<int64_t>(outputs);
    }
    if (first > out.begin) break;
    part.in.begin = begin;
    part.surplus = out.begin - first;
    break;
  }
  return part;
}

/// The rows of `part` by selection and weighting.
Tensor select_rows(const Tensor& rows, int64_t dim, const AxisPart& part) {
  std::vector<int64_t> low, high;
  std::vector<double> weights;
  for (int64_t o = part.out.begin; o < part.out.end; ++o) {
    const auto taps = part.wanted(o);
    low.push_back(taps.low - part.in.begin);
    high.push_back(taps.high - part.in.begin);
    weights.push_back(taps.weight);
  }
  const auto indices = rows.options().dtype(at::kLong);
  const Tensor first = rows.index_select(dim, at::tensor(low, indices));
  if (low == high) return first;
  Shape shape(static_cast<size_t>(rows.dim()), 1);
  shape[static_cast<size_t>(dim)] = part.out.size();
  const Tensor second = rows.index_select(dim, at::tensor(high, indices));
  // As LibTorch does, half types are weighted in float.
  const auto type = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor weight = at::tensor(weights, rows.options().dtype(type)).view(shape);
  return at::lerp(first.to(type), second.to(type), weight).to(rows.scalar_type());
}

/// LibTorch's op on `rows`, which hold the `parts` of all spatial dims, along the dims where it
/// gives what it would give on the whole tensor; the others by selection.
Tensor interpolate_rows(const Interpolation& call, Tensor rows, const std::vector<AxisPart>& parts,
                        const BoxInput& input) {
  auto size = call.size.vec();
  auto scales = call.scales;
  std::vector<bool> is_done(parts.size(), false);
  const auto select = [&](size_t i) {
    rows = select_rows(rows, Interpolation::dim(i), parts[i]);
    size[i] = parts[i].out.size();
    scales[i] = std::nullopt;
    is_done[i] = true;
  };
  for (const Cut& cut : input.cuts()) {
    const size_t i = input.entry(cut);
    size[i] = parts[i].local().out;
    scales[i] = parts[i].local().scale;
    if (!parts[i].is_native()) select(i);
  }
  const bool other_kernel =
      call.mode != Mode::Linear && uses_other_kernel(rows, size) != parts[0].is_other;
  for (size_t i = 0; other_kernel && i < size.size(); ++i) {
    if (!is_done[i] && !parts[i].is_native()) select(i);
  }
  bool is_complete = true;
  for (size_t i = 0; i < size.size(); ++i) is_complete &= is_done[i] || parts[i].is_identity();
  if (is_complete) return rows;
  Tensor y = call.local_op(rows, size, scales);
  for (size_t i = 0; i < size.size(); ++i) {
    if (!is_done[i] && parts[i].surplus > 0)
      y = y.narrow(Interpolation::dim(i), parts[i].surplus, parts[i].out.size());
  }
  return y;
}

void check_sizes(const Interpolation& call, const Tensor& x) {
  const auto dims = call.scales.size();
  const auto positive = [](IntArrayRef sizes) {
    return std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size > 0; });
  };
  check<SpecMismatch>(call.size.size() == dims && static_cast<size_t>(x.dim()) == dims + 2 &&
                          positive(call.size) && positive(x.sizes().slice(2)),
                      call.op, "got an input of ", x.sizes(), " to resize to ", call.size,
                      "; expected ", dims,
                      " positive spatial sizes after batch and channels. Correct the sizes.");
}

/// What every rank makes, from metadata.
std::vector<AxisPart> make_parts(const Axis& axis, bool is_other, const Partition& output) {
  std::vector<AxisPart> parts;
  int64_t begin = 0;
  for (const int64_t rows : output) {
    parts.push_back(part_of(axis, is_other, {begin, begin + rows}));
    begin += rows;
  }
  return parts;
}

/// NOTE [Idle ranks]
Tensor interpolate_dummy(const Interpolation& call, const LocalBox& box, const BoxInput& input) {
  auto size = call.size.vec();
  auto scales = call.scales;
  for (size_t i = 0; i < input.cuts().size(); ++i) {
    const size_t entry = input.entry(input.cuts()[i]);
    size[entry] = std::max<int64_t>(box.parts[i].out.size(), 1);
    scales[entry] = std::nullopt;
  }
  return call.local_op(box.rows, size, scales);
}

Tensor interpolate_box(const Interpolation& call, const Tensor& x, const BoxInput& input) {
  const bool is_other = uses_other_kernel(x, call.size);
  std::vector<AxisPart> own;  // all spatial dims
  for (size_t i = 0; i < call.size.size(); ++i) {
    const auto axis = call.axis(x, i);
    own.push_back({axis, is_other, {0, axis.out}, {0, axis.in}});
  }
  std::vector<CutParts> cuts;
  for (const Cut& cut : input.cuts()) {
    auto& axis_part = own[input.entry(cut)];
    const Axis axis = axis_part.axis;
    const auto output = partition_outputs(cut.owned, axis.out, [&](int64_t row) {
      return (row * axis.out + axis.in - 1) / axis.in;  // the first o with floor(o / scale) >= row
    });
    const auto parts = make_parts(axis, is_other, output);
    auto& of_places = cuts.emplace_back().parts;
    for (const auto& part : parts) of_places.push_back({part.out, part.in});
    axis_part = parts[static_cast<size_t>(input.place(cut))];
  }
  const auto box = input.fetch(cuts);
  const Tensor y = box.is_dummy() ? interpolate_dummy(call, box, input)
                                  : interpolate_rows(call, box.rows, own, input);
  return input.wrapped(y.contiguous(x.suggest_memory_format()), box);
}

Tensor interpolate(const Interpolation& call, const Tensor& x) {
  const auto input = window_input(call.op, x, static_cast<int64_t>(call.scales.size()),
                                  /*channels_are_local=*/true);
  if (input.is_cut()) {
    check_sizes(call, x);
    return interpolate_box(call, x, BoxInput(input));
  }
  const auto rows = own_rows(input);
  return from_rows(call.local_op(rows.rows, call.size, call.scales), input, rows);
}

template <class Op, size_t... i, class... Flag>
Tensor call_op(std::index_sequence<i...>, const Tensor& x, IntArrayRef size,
               const std::vector<Scale>& scales, Flag... align_corners) {
  return Op::call(x, c10::fromIntArrayRefSlow(size), align_corners..., scales[i]...);
}

template <class Op, Mode mode, class... Scales>
Tensor nearest(const Tensor& x, IntArrayRef size, Scales... scales) {
  const auto local_op = [](const Tensor& t, IntArrayRef local_size,
                           const std::vector<Scale>& local_scales) {
    return call_op<Op>(std::index_sequence_for<Scales...>(), t, local_size, local_scales);
  };
  return interpolate({Op::name, mode, false, size, {scales...}, local_op}, x);
}

template <class Op, class... Scales>
Tensor linear(const Tensor& x, IntArrayRef size, bool align_corners, Scales... scales) {
  const auto local_op = [=](const Tensor& t, IntArrayRef local_size,
                            const std::vector<Scale>& local_scales) {
    return call_op<Op>(std::index_sequence_for<Scales...>(), t, local_size, local_scales,
                       align_corners);
  };
  return interpolate({Op::name, Mode::Linear, align_corners, size, {scales...}, local_op}, x);
}

}  // namespace

SHARD_PATCH(interpolate) {
  namespace ops = at::_ops;
  const auto add = [](PatchRegistrar::Listing listing) {
    listing.shards("batch", "channels", "spatial");
  };
  constexpr auto kNearest = Mode::Nearest;
  constexpr auto kExact = Mode::NearestExact;
  add(patch.function<ops::upsample_nearest1d>(nearest<ops::upsample_nearest1d, kNearest, Scale>));
  add(patch.function<ops::upsample_nearest2d>(
      nearest<ops::upsample_nearest2d, kNearest, Scale, Scale>));
  add(patch.function<ops::upsample_nearest3d>(
      nearest<ops::upsample_nearest3d, kNearest, Scale, Scale, Scale>));
  add(patch.function<ops::_upsample_nearest_exact1d>(
      nearest<ops::_upsample_nearest_exact1d, kExact, Scale>));
  add(patch.function<ops::_upsample_nearest_exact2d>(
      nearest<ops::_upsample_nearest_exact2d, kExact, Scale, Scale>));
  add(patch.function<ops::_upsample_nearest_exact3d>(
      nearest<ops::_upsample_nearest_exact3d, kExact, Scale, Scale, Scale>));
  add(patch.function<ops::upsample_linear1d>(linear<ops::upsample_linear1d, Scale>));
  add(patch.function<ops::upsample_bilinear2d>(linear<ops::upsample_bilinear2d, Scale, Scale>));
  add(patch.function<ops::upsample_trilinear3d>(
      linear<ops::upsample_trilinear3d, Scale, Scale, Scale>));
}

}  // namespace shard
