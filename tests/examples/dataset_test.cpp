// SPDX-License-Identifier: Apache-2.0
#include <global_field/dataset.h>
#include <gmock/gmock.h>
#include <shard/error.h>
#include <shard/hdf5.h>
#include <shard/memory.h>
#include <torch/torch.h>

#include "io/fixtures/hdf5_fixture.h"
#include "io/fixtures/temporary_folder.h"
#include "synthetic_globe.h"

namespace global_field {
namespace {

using shard::io::testing::error_of;
using ::testing::HasSubstr;
using torch::Tensor;

class DatasetTest : public shard::io::testing::TemporaryFolder {
 protected:
  void SetUp() override {
    if (!shard::io::has_hdf5()) GTEST_SKIP() << "this build has no HDF5";
    testing::write_synthetic_globe(folder());
    options.folder = folder();
    options.reduce = 40;  // 54 x 108
  }
  FieldOptions options;
};

/// Turbidity of a month straight from what was stored.
Tensor expected_month(int64_t month, int64_t reduce) {
  const Tensor raw = testing::synthetic_turbidity().select(2, month).to(torch::kFloat64) / 20;
  return torch::nn::functional::avg_pool2d(raw.unsqueeze(0).unsqueeze(0),
                                           torch::nn::functional::AvgPool2dFuncOptions(reduce));
}

Tensor turbidity(const Tensor& model_units) {
  return model_units.to(torch::kFloat64) * kUnit + kOffset;
}

TEST_F(DatasetTest, DecodesAndReduces) {
  const GlobalField field(options);
  EXPECT_TRUE(turbidity(field.month(3)).allclose(expected_month(3, 40), 1e-5, 1e-5));
  const Tensor altitude = field.sample(0).input[0][3];
  EXPECT_NEAR(altitude.max().item<double>(), (28 * 117 - 450) / 1000.0, 0.05);
  EXPECT_EQ(altitude.min().item<double>(), 0) << "the sea";
  const Tensor sine = field.sample(0).input[0][4];
  EXPECT_NEAR(sine[0][0].item<double>(), 1, 1e-3) << "row 0 is in the north";
  EXPECT_NEAR(sine[53][0].item<double>(), -1, 1e-3);
}

TEST_F(DatasetTest, PartsAreTheWhole) {
  const GlobalField whole(options);
  const std::vector<int64_t> borders = {0, 31, 32, 32, 54};
  std::vector<Tensor> parts;
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    const Span rows{borders[i], borders[i + 1]};
    const Tensor west = GlobalField(options, rows, {0, 50}).sample(6).input;
    const Tensor east = GlobalField(options, rows, {50, 108}).sample(6).input;
    parts.push_back(torch::cat({west, east}, 3));
  }
  EXPECT_TRUE(torch::cat(parts, 2).equal(whole.sample(6).input));
}

TEST_F(DatasetTest, APartAllocatesItsOwnRowsOnly) {
  constexpr int64_t kRow = kRawColumns * kMonths * int64_t{sizeof(float)};
  options.reduce = 1;
  shard::MemoryAccount& account = shard::MemoryAccount::current();
  account.reset_peak();
  const int64_t before = account.live();
  const GlobalField rows(options, {1000, 1004}, {0, kRawColumns});
  EXPECT_EQ(account.largest(), 4 * kRow) << "the twelve months of four rows";
  EXPECT_LT(account.peak() - before, kRawRows * kRow / 100) << "the whole globe";
}

TEST_F(DatasetTest, TheCalendarWrapsAround) {
  const GlobalField field(options);
  const Sample january = field.sample(0);
  EXPECT_EQ(january.input.sizes(), (std::vector<int64_t>{1, kInputChannels, 54, 108}));
  EXPECT_TRUE(january.target.equal(field.month(0)));
  const std::vector<int64_t> before = {9, 10, 11};
  for (int64_t channel = 0; channel < 3; ++channel) {
    EXPECT_TRUE(january.input.narrow(1, channel, 1)
                    .equal(field.month(before[static_cast<size_t>(channel)])));
  }
}

TEST_F(DatasetTest, HeldOutMonthsAreNotInTheTrainingMean) {
  const GlobalField field(options);
  Tensor sum = torch::zeros({1, 1, 54, 108});
  for (const int64_t month : kTrainingMonths) {
    for (const int64_t held_out : kHeldOutMonths) EXPECT_NE(month, held_out);
    sum += field.month(month);
  }
  EXPECT_TRUE(field.training_mean().allclose(sum / 9, 1e-5, 1e-5));
}

TEST_F(DatasetTest, RefusesFilesOfAnotherShape) {
  shard::io::testing::write_hdf5(path("Altitude.h5"), "Altitude",
                                 torch::zeros({4, 4}, torch::kByte));
  EXPECT_THAT(error_of<shard::FileError>([&] { const GlobalField field(options); }),
              HasSubstr("has shape [4, 4]; expected [2160, 4320]"));
}

}  // namespace
}  // namespace global_field
