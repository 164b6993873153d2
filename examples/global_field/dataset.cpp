// SPDX-License-Identifier: Apache-2.0
#include "dataset.h"

#include <shard/hdf5.h>
#include <torch/types.h>

#include <numbers>

namespace global_field {
namespace {

using torch::Tensor;
using torch::indexing::Slice;

// The files' encodings (pvlib's documentation): turbidity = value / 20; altitude = 28 m * value -
// 450 m with 255 for the sea.
constexpr double kTurbidityScale = 1.0 / 20;
constexpr double kAltitudeScale = 28;
constexpr double kAltitudeOffset = -450;
constexpr int kSea = 255;
constexpr double kAltitudeUnit = 1000;

constexpr int64_t kBandRows = 135;  // rows of one chunk of the turbidity file

/// (rows, columns) or (rows, columns, months) -> the same over blocks x blocks points.
Tensor block_mean(const Tensor& band, int64_t reduce) {
  if (reduce == 1) return band;
  std::vector<int64_t> sizes = {band.size(0) / reduce, reduce, band.size(1) / reduce, reduce};
  if (band.dim() == 3) sizes.push_back(band.size(2));
  return band.reshape(sizes).mean({1, 3});
}

Tensor decode_turbidity(const Tensor& raw) {
  return raw.to(torch::kFloat32).mul_(kTurbidityScale / kUnit).sub_(kOffset / kUnit);
}

Tensor decode_altitude(const Tensor& raw) {
  const Tensor metres = raw.to(torch::kFloat32).mul_(kAltitudeScale).add_(kAltitudeOffset);
  return metres.masked_fill_(raw == kSea, 0).div_(kAltitudeUnit);
}

/// Reads a part of the reduced globe in bands of rows, so that the full resolution is never held
/// for more than one band.
template <class Decode>
Tensor read_part(const shard::io::Hdf5Dataset& data, int64_t reduce, Span rows, Span columns,
                 Decode decode) {
  const int64_t band_rows = std::max<int64_t>(1, kBandRows / reduce);
  std::vector<Tensor> bands;
  for (int64_t row = rows.begin; row < rows.end || bands.empty(); row += band_rows) {
    const int64_t stop = std::min(rows.end, row + band_rows);
    const Tensor band =
        data.read_rows(row * reduce, stop * reduce)
            .narrow(1, columns.begin * reduce, (columns.end - columns.begin) * reduce);
    bands.push_back(block_mean(decode(band), reduce));
  }
  return torch::cat(bands, 0);
}

/// Sine and cosine of the latitude of these rows of `all_rows`, (2, rows, columns).
Tensor latitude_channels(Span rows, int64_t all_rows, int64_t columns) {
  const Tensor centre = torch::arange(rows.begin, rows.end, torch::kFloat32).add_(0.5);
  const Tensor latitude = (0.5 - centre / static_cast<double>(all_rows)) * std::numbers::pi;
  return torch::stack({latitude.sin(), latitude.cos()}).unsqueeze(2).expand({2, -1, columns});
}

}  // namespace

GlobalField::GlobalField(const FieldOptions& options, Span rows, Span columns) {
  const shard::io::Hdf5Dataset turbidity(options.folder + "/LinkeTurbidities.h5", "LinkeTurbidity");
  const shard::io::Hdf5Dataset altitude(options.folder + "/Altitude.h5", "Altitude");
  turbidity.require_sizes({kRawRows, kRawColumns, kMonths});
  altitude.require_sizes({kRawRows, kRawColumns});

  const Tensor months = read_part(turbidity, options.reduce, rows, columns, decode_turbidity);
  const Tensor heights = read_part(altitude, options.reduce, rows, columns, decode_altitude);
  const Tensor latitude =
      latitude_channels(rows, GlobalField::rows(options), columns.end - columns.begin);
  const auto target = torch::TensorOptions(options.dtype).device(options.device);
  turbidity_ = months.permute({2, 0, 1}).contiguous().to(target);
  geography_ = torch::cat({heights.unsqueeze(0), latitude}).to(target);
}

Sample GlobalField::sample(int64_t target_month) const {
  std::vector<Tensor> channels;
  for (const int64_t before : {3, 2, 1}) {
    channels.push_back(turbidity_[(target_month + kMonths - before) % kMonths].unsqueeze(0));
  }
  channels.push_back(geography_);
  return {torch::cat(channels).unsqueeze(0), month(target_month)};
}

Tensor GlobalField::month(int64_t month) const {
  return turbidity_[month].unsqueeze(0).unsqueeze(0).clone();
}

Tensor GlobalField::training_mean() const {
  const Tensor months =
      torch::tensor(std::vector<int64_t>(kTrainingMonths.begin(), kTrainingMonths.end()),
                    torch::kLong)
          .to(turbidity_.device());
  return turbidity_.index_select(0, months).mean(0).unsqueeze(0).unsqueeze(0);
}

}  // namespace global_field
