// SPDX-License-Identifier: Apache-2.0
// Interpolation with antialiasing: every output row is a weighted mean of the input rows within a
// filter's support, which widens as an image shrinks (shard/resample_patch.h).
#include <ATen/native/UpSample.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <shard/resample_patch.h>

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

/// Of output row `o` of `out` along a dim of `in` rows; `scale` as passed to the op.
template <class Real>
Taps taps_in(Filter filter, int64_t in, int64_t out, int64_t o, bool align_corners, Scale scale) {
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
  if (weights.empty()) return {{in - 1}, {0}};  // a scale that reaches beyond the input
  Taps taps;
  for (const Real weight : weights) {
    taps.rows.push_back(begin + static_cast<int64_t>(taps.rows.size()));
    taps.weights.push_back(total == 0 ? weight : weight / total);
  }
  return taps;
}

using Op = Tensor (*)(const Tensor&, IntArrayRef, bool, Scale, Scale);

/// Along spatial dim `i` alone: all others become images of one row.
Tensor along(Op op, const Tensor& x, size_t i, int64_t size, bool align_corners, Scale scale) {
  const Tensor moved = x.movedim(static_cast<int64_t>(i) + 2, -1);
  auto sizes = moved.sizes().vec();
  const int64_t rows = c10::multiply_integers(IntArrayRef(sizes).slice(0, sizes.size() - 1));
  const Tensor y =
      op(moved.reshape({rows, 1, 1, sizes.back()}), {1, size}, align_corners, std::nullopt, scale);
  sizes.back() = size;
  return y.reshape(sizes).movedim(-1, static_cast<int64_t>(i) + 2);
}

template <Filter filter, Op op>
Tensor antialiased(const Tensor& x, IntArrayRef size, bool align_corners, Scale scale_h,
                   Scale scale_w) {
  const std::vector<Scale> scales{scale_h, scale_w};
  const auto uncut_dims = [&](Tensor t, const BoxInput& input) {
    std::vector<bool> is_cut(size.size(), false);
    for (const Cut& cut : input.cuts()) is_cut[input.entry(cut)] = true;
    for (size_t i = 0; i < size.size(); ++i) {
      if (!is_cut[i]) t = along(op, t, i, size[i], align_corners, scales[i]);
    }
    return t;
  };
  return resample(
      {filter == Filter::Linear ? "aten::_upsample_bilinear2d_aa" : "aten::_upsample_bicubic2d_aa",
       size, [&](const Tensor& t) { return op(t, size, align_corners, scale_h, scale_w); },
       uncut_dims,
       [&](size_t i, int64_t in, int64_t o, at::ScalarType type) {
         return type == at::kDouble
                    ? taps_in<double>(filter, in, size[i], o, align_corners, scales[i])
                    : taps_in<float>(filter, in, size[i], o, align_corners, scales[i]);
       },
       /*weighs_only_floating=*/true},
      x);
}

}  // namespace

SHARD_PATCH(antialias) {
  patch
      .function<at::_ops::_upsample_bilinear2d_aa>(
          antialiased<Filter::Linear, &at::_upsample_bilinear2d_aa>)
      .shards("batch", "channels", "spatial");
  patch
      .function<at::_ops::_upsample_bicubic2d_aa>(
          antialiased<Filter::Cubic, &at::_upsample_bicubic2d_aa>)
      .shards("batch", "channels", "spatial");
}

}  // namespace shard
