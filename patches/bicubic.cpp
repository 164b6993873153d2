// SPDX-License-Identifier: Apache-2.0
// Bicubic interpolation. As in patches/interpolate.cpp each rank makes the output rows whose place
// in the input it owns. Along the sharded dim the four rows of every output row are selected and
// weighted here, with the numbers that LibTorch's own functions give for the whole dim; its op does
// the other dim. Selecting comes last where that is less work.
#include <ATen/native/UpSample.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <shard/box_patch.h>

#include <algorithm>
#include <array>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Scale = std::optional<double>;

constexpr const char* kOp = "aten::upsample_bicubic2d";
constexpr int64_t kTaps = 4;

struct Taps {
  std::array<int64_t, kTaps> rows;
  std::array<double, kTaps> weights;
};

/// Interpolation along one dim.
struct Axis {
  bool align_corners;
  int64_t in, out;
  Scale scale;  ///< as passed to the op

  template <class Real>
  Taps taps_in(int64_t o) const {
    namespace lt = at::native;
    const Real ratio = lt::area_pixel_compute_scale<Real>(in, out, align_corners, scale);
    const Real source =
        lt::area_pixel_compute_source_index<Real>(ratio, o, align_corners, /*cubic=*/true);
    int64_t row = 0;
    Real t = 0;
    lt::guard_index_and_lambda(source, in, row, t);
    Real weights[kTaps];
    lt::get_cubic_upsample_coefficients<Real>(weights, t);
    Taps taps{};
    for (int64_t i = 0; i < kTaps; ++i) {
      const auto entry = static_cast<size_t>(i);
      taps.rows[entry] = std::clamp<int64_t>(row - 1 + i, 0, in - 1);
      taps.weights[entry] = weights[entry];
    }
    return taps;
  }
  Taps taps(int64_t o, at::ScalarType type) const {
    return type == at::kDouble ? taps_in<double>(o) : taps_in<float>(o);
  }
  /// The input rows of some output rows.
  Rows rows_of(const Rows& rows, at::ScalarType type) const {
    if (rows.size() == 0) return {0, 0};
    return {taps(rows.begin, type).rows.front(), taps(rows.end - 1, type).rows.back() + 1};
  }
};

/// Output rows `out` from `rows`, which begin at input row `first`.
Tensor interpolate_rows(const Tensor& rows, int64_t dim, const Axis& axis, const Rows& out,
                        int64_t first) {
  // As LibTorch does, half types are weighted in float.
  const auto type = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Shape shape(static_cast<size_t>(rows.dim()), 1);
  shape[static_cast<size_t>(dim)] = out.size();
  Tensor sum;
  for (size_t tap = 0; tap < kTaps; ++tap) {
    std::vector<int64_t> sources;
    std::vector<double> weights;
    for (int64_t o = out.begin; o < out.end; ++o) {
      const auto taps = axis.taps(o, type);
      sources.push_back(taps.rows[tap] - first);
      weights.push_back(taps.weights[tap]);
    }
    const Tensor index = at::tensor(sources, rows.options().dtype(at::kLong));
    const Tensor weight = at::tensor(weights, rows.options().dtype(type)).view(shape);
    const Tensor term = rows.index_select(dim, index).to(type) * weight;
    sum = sum.defined() ? sum + term : term;
  }
  return sum.to(rows.scalar_type());
}

struct Interpolation {
  IntArrayRef size;
  bool align_corners;
  std::vector<Scale> scales;

  Axis axis(const BoxInput& input, const Cut& cut) const {
    const size_t i = input.entry(cut);
    return {align_corners, input.size(cut), size[i], scales[i]};
  }
  Tensor operator()(const Tensor& x) const {
    return at::upsample_bicubic2d(x, size, align_corners, scales[0], scales[1]);
  }
  /// Only along dims that are not cut.
  Tensor uncut_dims(const Tensor& x, const BoxInput& input) const {
    if (input.cuts().size() == size.size()) return x;
    auto sizes = size.vec();
    auto scales_left = scales;
    for (const Cut& cut : input.cuts()) {
      sizes[input.entry(cut)] = x.size(cut.dim);
      scales_left[input.entry(cut)] = std::nullopt;
    }
    return at::upsample_bicubic2d(x, sizes, align_corners, scales_left[0], scales_left[1]);
  }
};

void check_sizes(const Tensor& x, IntArrayRef size) {
  const auto positive = [](IntArrayRef sizes) {
    return std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n > 0; });
  };
  check<SpecMismatch>(
      size.size() == 2 && x.dim() == 4 && positive(size) && positive(x.sizes().slice(2)), kOp,
      "got an input of ", x.sizes(), " to resize to ", size,
      "; expected two positive spatial sizes after batch and channels. Correct the "
      "sizes.");
}

/// What every place along a cut makes of which rows.
CutParts make_parts(const Axis& axis, const Cut& cut, at::ScalarType type) {
  const auto output = partition_outputs(cut.owned, axis.out, [&](int64_t row) {
    return (row * axis.out + axis.in - 1) / axis.in;  // the first o with floor(o / scale) >= row
  });
  CutParts result;
  int64_t begin = 0;
  for (const int64_t size : output) {
    const Rows out{begin, begin + size};
    result.parts.push_back({out, axis.rows_of(out, type)});
    begin += size;
  }
  return result;
}

Tensor interpolate_box(const Interpolation& call, const Tensor& x, const BoxInput& input) {
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<CutParts> cuts;
  bool grows = false;
  for (const Cut& cut : input.cuts()) {
    const Axis axis = call.axis(input, cut);
    cuts.push_back(make_parts(axis, cut, type));
    grows |= axis.out > axis.in;
  }
  const auto box = input.fetch(cuts);
  const auto select = [&](Tensor t) {
    for (size_t i = 0; i < cuts.size(); ++i) {
      const auto& part = box.parts[i];
      if (part.out.size() == 0) continue;
      const Cut& cut = input.cuts()[i];
      t = interpolate_rows(t, cut.dim, call.axis(input, cut), part.out, part.in.begin);
    }
    return t;
  };
  const Tensor y =
      grows ? select(call.uncut_dims(box.rows, input)) : call.uncut_dims(select(box.rows), input);
  return input.wrapped(y.contiguous(x.suggest_memory_format()), box);
}

Tensor bicubic(const Tensor& x, IntArrayRef size, bool align_corners, Scale scale_h,
               Scale scale_w) {
  const Interpolation call{size, align_corners, {scale_h, scale_w}};
  const auto input = window_input(kOp, x, 2, /*channels_are_local=*/true);
  if (input.is_cut()) {
    check_sizes(x, size);
    return interpolate_box(call, x, BoxInput(input));
  }
  const auto rows = own_rows(input);
  return from_rows(call(rows.rows), input, rows);
}

}  // namespace

SHARD_PATCH(bicubic) {
  patch.function<at::_ops::upsample_bicubic2d>(bicubic).shards("batch", "channels", "spatial");
}

}  // namespace shard
