// SPDX-License-Identifier: Apache-2.0
// Interpolation with antialiasing: every output row is a weighted mean of the input rows within a
// filter's support, which widens as an image shrinks. The filters are separable. As in
// patches/bicubic.cpp a rank makes the output rows whose place in the input it owns; along a cut
// dim rows are selected and weighted here, with LibTorch's formulas for the whole dim; its op does
// the other dim.
#include <ATen/native/UpSample.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <shard/box_patch.h>

#include <algorithm>
#include <cmath>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Scale = std::optional<double>;

enum class Filter : uint8_t { Linear, Cubic };

/// A filter reaches so far to both sides, in rows of the larger one of input and output.
double reach_of(Filter filter) { return filter == Filter::Linear ? 1 : 2; }

template <class Real>
Real weight_at(Filter filter, Real x) {
  x = std::abs(x);
  if (filter == Filter::Linear) return x < 1 ? 1 - x : 0;
  constexpr Real kA = -0.5;
  if (x < 1) return at::native::cubic_convolution1<Real>(x, kA);
  return x < 2 ? at::native::cubic_convolution2<Real>(x, kA) : 0;
}

/// An output row is the sum of the input rows `first`, `first` + 1, ... times the weights.
struct Taps {
  int64_t first = 0;
  std::vector<double> weights;  ///< at least one
  int64_t end() const { return first + static_cast<int64_t>(weights.size()); }
};

/// Interpolation along one dim.
struct Axis {
  Filter filter;
  bool align_corners;
  int64_t in, out;
  Scale scale;  ///< as passed to the op

  template <class Real>
  Taps taps_in(int64_t o) const {
    const Real ratio = at::native::area_pixel_compute_scale<Real>(in, out, align_corners, scale);
    const auto reach = static_cast<Real>(reach_of(filter));
    const Real support = ratio >= 1 ? reach * ratio : reach;
    const Real step = ratio >= 1 ? 1 / ratio : 1;
    // Precisions are mixed as LibTorch mixes them.
    const auto centre =
        static_cast<Real>(static_cast<double>(ratio) * (static_cast<double>(o) + 0.5));
    const auto row_at = [](Real place) {
      const double shifted = static_cast<double>(place) + 0.5;
      return static_cast<int64_t>(shifted);  // towards zero, as LibTorch
    };
    const int64_t begin = std::max<int64_t>(row_at(centre - support), 0);
    const int64_t end = std::min(row_at(centre + support), in);
    const int64_t longest = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
    std::vector<Real> weights;
    Real total = 0;
    for (int64_t row = begin; row < std::min(end, begin + longest); ++row) {
      const double distance = static_cast<double>(static_cast<Real>(row) - centre) + 0.5;
      weights.push_back(
          weight_at<Real>(filter, static_cast<Real>(distance * static_cast<double>(step))));
      total += weights.back();
    }
    if (weights.empty()) return {in - 1, {0}};  // a scale that reaches beyond the input
    Taps taps{begin, {}};
    for (const Real weight : weights) taps.weights.push_back(total == 0 ? weight : weight / total);
    return taps;
  }
  Taps taps(int64_t o, at::ScalarType type) const {
    return type == at::kDouble ? taps_in<double>(o) : taps_in<float>(o);
  }
  /// The input rows of some output rows.
  Rows rows_of(const Rows& rows, at::ScalarType type) const {
    if (rows.size() == 0) return {0, 0};
    return {taps(rows.begin, type).first, taps(rows.end - 1, type).end()};
  }
};

/// As LibTorch does, half types are weighted in float.
at::ScalarType weighted_type(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Output rows `out` from `rows`, which begin at input row `first`.
Tensor filter_rows(const Tensor& rows, int64_t dim, const Axis& axis, const Rows& out,
                   int64_t first) {
  const auto type = weighted_type(rows);
  std::vector<Taps> taps;
  size_t most = 0;
  for (int64_t o = out.begin; o < out.end; ++o) {
    taps.push_back(axis.taps(o, type));
    most = std::max(most, taps.back().weights.size());
  }
  Shape shape(static_cast<size_t>(rows.dim()), 1);
  shape[static_cast<size_t>(dim)] = out.size();
  Tensor sum;
  for (size_t tap = 0; tap < most; ++tap) {
    std::vector<int64_t> sources;
    std::vector<double> weights;
    for (const auto& own : taps) {  // those that have fewer take a row of theirs 0 times
      const bool has_tap = tap < own.weights.size();
      sources.push_back(own.first - first + (has_tap ? static_cast<int64_t>(tap) : 0));
      weights.push_back(has_tap ? own.weights[tap] : 0);
    }
    const Tensor index = at::tensor(sources, rows.options().dtype(at::kLong));
    const Tensor weight = at::tensor(weights, rows.options().dtype(type)).view(shape);
    const Tensor term = rows.index_select(dim, index).to(type) * weight;
    sum = sum.defined() ? sum + term : term;
  }
  return sum.to(rows.scalar_type());
}

struct Interpolation {
  const char* op;
  Filter filter;
  Tensor (*local_op)(const Tensor&, IntArrayRef, bool, Scale, Scale);
  IntArrayRef size;
  bool align_corners;
  std::vector<Scale> scales;

  Axis axis(const BoxInput& input, const Cut& cut) const {
    const size_t i = input.entry(cut);
    return {filter, align_corners, input.size(cut), size[i], scales[i]};
  }
  Tensor operator()(const Tensor& x) const {
    return local_op(x, size, align_corners, scales[0], scales[1]);
  }
  /// Along spatial dim `i` alone: all others become images of one row.
  Tensor along(const Tensor& x, size_t i) const {
    const Tensor moved = x.movedim(static_cast<int64_t>(i) + 2, -1);
    auto sizes = moved.sizes().vec();
    const int64_t rows = c10::multiply_integers(IntArrayRef(sizes).slice(0, sizes.size() - 1));
    const Tensor y = local_op(moved.reshape({rows, 1, 1, sizes.back()}), {1, size[i]},
                              align_corners, std::nullopt, scales[i]);
    sizes.back() = size[i];
    return y.reshape(sizes).movedim(-1, static_cast<int64_t>(i) + 2);
  }
  Tensor uncut_dims(Tensor x, const BoxInput& input) const {
    std::vector<bool> is_cut(size.size(), false);
    for (const Cut& cut : input.cuts()) is_cut[input.entry(cut)] = true;
    for (size_t i = 0; i < size.size(); ++i) {
      if (!is_cut[i]) x = along(x, i);
    }
    return x;
  }
};

void check_sizes(const char* op, const Tensor& x, IntArrayRef size) {
  const auto positive = [](IntArrayRef sizes) {
    return std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n > 0; });
  };
  check<SpecMismatch>(
      size.size() == 2 && x.dim() == 4 && positive(size) && positive(x.sizes().slice(2)), op,
      "got an input of ", x.sizes(), " to resize to ", size,
      "; expected two positive spatial sizes after batch and channels. Correct the sizes.");
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
  std::vector<CutParts> cuts;
  bool grows = false;
  for (const Cut& cut : input.cuts()) {
    const Axis axis = call.axis(input, cut);
    cuts.push_back(make_parts(axis, cut, weighted_type(x)));
    grows |= axis.out > axis.in;
  }
  const auto box = input.fetch(cuts);
  const auto select = [&](Tensor t) {
    for (size_t i = 0; i < cuts.size(); ++i) {
      const auto& part = box.parts[i];
      if (part.out.size() == 0) continue;
      const Cut& cut = input.cuts()[i];
      t = filter_rows(t, cut.dim, call.axis(input, cut), part.out, part.in.begin);
    }
    return t;
  };
  const Tensor y =
      grows ? select(call.uncut_dims(box.rows, input)) : call.uncut_dims(select(box.rows), input);
  return input.wrapped(y.contiguous(x.suggest_memory_format()), box);
}

Tensor interpolate(const Interpolation& call, const Tensor& x) {
  const auto input = window_input(call.op, x, 2, /*channels_are_local=*/true);
  if (input.is_cut()) {
    check_sizes(call.op, x, call.size);
    check<SpecMismatch>(x.is_floating_point(), call.op, "got ", x.scalar_type(), " images cut in ",
                        "space; expected floating-point ones. Convert them, or cut the batch.");
    return interpolate_box(call, x, BoxInput(input));
  }
  const auto rows = own_rows(input);
  return from_rows(call(rows.rows), input, rows);
}

Tensor bilinear(const Tensor& x, IntArrayRef size, bool align_corners, Scale scale_h,
                Scale scale_w) {
  return interpolate({"aten::_upsample_bilinear2d_aa",
                      Filter::Linear,
                      &at::_upsample_bilinear2d_aa,
                      size,
                      align_corners,
                      {scale_h, scale_w}},
                     x);
}

Tensor bicubic(const Tensor& x, IntArrayRef size, bool align_corners, Scale scale_h,
               Scale scale_w) {
  return interpolate({"aten::_upsample_bicubic2d_aa",
                      Filter::Cubic,
                      &at::_upsample_bicubic2d_aa,
                      size,
                      align_corners,
                      {scale_h, scale_w}},
                     x);
}

}  // namespace

SHARD_PATCH(antialias) {
  patch.function<at::_ops::_upsample_bilinear2d_aa>(bilinear).shards("batch", "channels",
                                                                     "spatial");
  patch.function<at::_ops::_upsample_bicubic2d_aa>(bicubic).shards("batch", "channels", "spatial");
}

}  // namespace shard
