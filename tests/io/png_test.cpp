// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <shard/error.h>
#include <shard/png.h>

#include "io/fixtures/png_reader.h"
#include "io/fixtures/python.h"
#include "io/fixtures/temporary_folder.h"

namespace shard::io {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

class PngTest : public testing::TemporaryFolder {};

at::Tensor colours() { return at::arange(5 * 7 * 3, at::kByte).mul_(2).view({5, 7, 3}); }

TEST_F(PngTest, RoundTripsColoursAndGrey) {
  write_png(path("rgb.png"), colours());
  EXPECT_TRUE(testing::read_png(path("rgb.png")).equal(colours()));
  const at::Tensor grey =
      colours().select(2, 0);  // strided: every row is copied from where it lies
  write_png(path("grey.png"), grey);
  EXPECT_TRUE(testing::read_png(path("grey.png")).equal(grey));
}

TEST_F(PngTest, RefusesOtherTensors) {
  const auto refused = [&](const at::Tensor& image) {
    return error_of<SpecMismatch>([&] { write_png(path("x.png"), image); });
  };
  EXPECT_THAT(refused(at::zeros({4, 4, 3})), HasSubstr("expected CPU uint8"));
  EXPECT_THAT(refused(at::zeros({4, 4, 2}, at::kByte)), HasSubstr("[4, 4, 2]"));
  EXPECT_THAT(refused(at::empty({0, 4}, at::kByte)), HasSubstr("[0, 4]"));
  EXPECT_TRUE(testing::files_in(folder()).empty());
}

TEST_F(PngTest, LeavesNothingBehindWhenItCannotWrite) {
  error_of<FileError>([&] { write_png(path("no/x.png"), colours()); });
  EXPECT_TRUE(testing::files_in(folder()).empty());
}

TEST_F(PngTest, PillowReadsTheSamePixels) {
  SHARD_REQUIRE_PYTHON_MODULE("PIL");
  write_png(path("rgb.png"), colours());
  EXPECT_EQ(testing::python("from PIL import Image; print(list(Image.open('" + path("rgb.png") +
                            "').tobytes()) == [i * 2 % 256 for i in range(105)])"),
            "True\n");
}

}  // namespace
}  // namespace shard::io
