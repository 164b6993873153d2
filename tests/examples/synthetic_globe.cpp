// SPDX-License-Identifier: Apache-2.0
#include "synthetic_globe.h"

#include <global_field/dataset.h>
#include <torch/types.h>

#include <numbers>

#include "io/fixtures/hdf5_fixture.h"

namespace global_field::testing {
namespace {

/// Angles of the centres of n cells over `range`, along the last or the one but last dim.
at::Tensor angles(int64_t n, double range) {
  return (torch::arange(n) + 0.5) * (range / static_cast<double>(n));
}

}  // namespace

at::Tensor synthetic_turbidity() {
  const at::Tensor south = angles(kRawRows, std::numbers::pi).unsqueeze(1);
  const at::Tensor east = angles(kRawColumns, 2 * std::numbers::pi).unsqueeze(0);
  const at::Tensor place = 20 * south.sin() * (1 + 0.3 * (3 * east).cos());
  const at::Tensor season = 15 * south.cos() + 5 * south.sin() * east.sin();
  at::Tensor months = torch::empty({kRawRows, kRawColumns, kMonths}, torch::kByte);
  for (int64_t month = 0; month < kMonths; ++month) {
    const double phase = std::sin(2 * std::numbers::pi * static_cast<double>(month) / kMonths);
    months.select(2, month).copy_((40 + place + phase * season).round());
  }
  return months;
}

at::Tensor synthetic_altitude() {
  const at::Tensor east = angles(kRawColumns, 2 * std::numbers::pi).unsqueeze(0);
  const at::Tensor height = 17 + 100 * east.sin().expand({kRawRows, kRawColumns});
  return torch::where(height < 17, torch::full({}, 255.0F), height).round().to(torch::kByte);
}

void write_synthetic_globe(const std::string& folder) {
  using shard::io::testing::write_hdf5;
  write_hdf5(folder + "/LinkeTurbidities.h5", "LinkeTurbidity", synthetic_turbidity());
  write_hdf5(folder + "/Altitude.h5", "Altitude", synthetic_altitude());
}

}  // namespace global_field::testing
