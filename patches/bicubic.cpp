// SPDX-License-Identifier: Apache-2.0
// Bicubic interpolation: four rows for every output row (shard/resample_patch.h).
#include <ATen/native/UpSample.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <shard/resample_patch.h>

#include <algorithm>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Scale = std::optional<double>;

constexpr int64_t kTaps = 4;

/// Of output row `o` of `out` along a dim of `in` rows; `scale` as passed to the op.
template <class Real>
Taps taps_in(int64_t in, int64_t out, int64_t o, bool align_corners, Scale scale) {
  namespace lt = at::native;
  const Real ratio = lt::area_pixel_compute_scale<Real>(in, out, align_corners, scale);
  const Real source =
      lt::area_pixel_compute_source_index<Real>(ratio, o, align_corners, /*cubic=*/true);
  int64_t row = 0;
  Real t = 0;
  lt::guard_index_and_lambda(source, in, row, t);
  Real weights[kTaps];
  lt::get_cubic_upsample_coefficients<Real>(weights, t);
  Taps taps;
  for (int64_t i = 0; i < kTaps; ++i) {
    taps.rows.push_back(std::clamp<int64_t>(row - 1 + i, 0, in - 1));
    taps.weights.push_back(weights[i]);
  }
  return taps;
}

Tensor bicubic(const Tensor& x, IntArrayRef size, bool align_corners, Scale scale_h,
               Scale scale_w) {
  const std::vector<Scale> scales{scale_h, scale_w};
  const auto run = [=](const Tensor& t, IntArrayRef to, const std::vector<Scale>& by) {
    return at::upsample_bicubic2d(t, to, align_corners, by[0], by[1]);
  };
  const auto uncut_dims = [&](const Tensor& t, const BoxInput& input) {
    if (input.cuts().size() == size.size()) return t;
    auto sizes = size.vec();
    auto scales_left = scales;
    for (const Cut& cut : input.cuts()) {
      sizes[input.entry(cut)] = t.size(cut.dim);
      scales_left[input.entry(cut)] = std::nullopt;
    }
    return run(t, sizes, scales_left);
  };
  return resample({"aten::upsample_bicubic2d", size,
                   [&](const Tensor& t) { return run(t, size, scales); }, uncut_dims,
                   [&](size_t i, int64_t in, int64_t o, at::ScalarType type) {
                     return type == at::kDouble
                                ? taps_in<double>(in, size[i], o, align_corners, scales[i])
                                : taps_in<float>(in, size[i], o, align_corners, scales[i]);
                   }},
                  x);
}

}  // namespace

SHARD_PATCH(bicubic) {
  patch.function<at::_ops::upsample_bicubic2d>(bicubic).shards("batch", "channels", "spatial");
}

}  // namespace shard
