// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <shard/atomic_file.h>
#include <shard/error.h>
#include <shard/hdf5.h>

#include <filesystem>
#include <thread>

#include "io/fixtures/hdf5_fixture.h"
#include "io/fixtures/python.h"
#include "io/fixtures/temporary_folder.h"

namespace shard::io {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::write_hdf5;

class Hdf5Test : public testing::TemporaryFolder {
 protected:
  void SetUp() override {
    if (!has_hdf5()) GTEST_SKIP() << "this build has no HDF5";
  }
};

/// (rows, columns, months) like the real field, in little.
at::Tensor small_field() {
  return at::arange(12 * 10 * 4, at::kLong).remainder(251).to(at::kByte).view({12, 10, 4});
}

TEST_F(Hdf5Test, ReadsTheWholeDatasetOfEveryElementType) {
  for (const at::ScalarType type : {at::kByte, at::kShort, at::kLong, at::kFloat, at::kDouble}) {
    const at::Tensor values = at::arange(-3, 9).abs().to(type).view({3, 4});
    write_hdf5(path("a.h5"), "x", values);
    const Hdf5Dataset dataset(path("a.h5"), "x");
    EXPECT_EQ(dataset.dtype(), type);
    EXPECT_EQ(dataset.sizes(), (std::vector<int64_t>{3, 4}));
    EXPECT_TRUE(dataset.read().equal(values)) << type;
  }
}

TEST_F(Hdf5Test, ReadsForeignByteOrder) {
  const at::Tensor values = at::arange(6, at::kDouble);
  write_hdf5(path("a.h5"), "x", values, {}, /*big_endian=*/true);
  EXPECT_TRUE(Hdf5Dataset(path("a.h5"), "x").read().equal(values));
}

TEST_F(Hdf5Test, ReadsRowsAcrossChunks) {
  write_hdf5(path("a.h5"), "field", small_field(), {5, 3, 2});
  const Hdf5Dataset dataset(path("a.h5"), "field");
  for (int64_t begin = 0; begin <= 12; ++begin) {
    for (int64_t end = begin; end <= 12; ++end) {
      EXPECT_TRUE(dataset.read_rows(begin, end).equal(small_field().slice(0, begin, end)));
    }
  }
}

TEST_F(Hdf5Test, ReadsStridedRanges) {
  write_hdf5(path("a.h5"), "field", small_field(), {5, 3, 2});
  const at::Tensor part =
      Hdf5Dataset(path("a.h5"), "field").read({{1, 12, 4}, {0, 10, 3}, {2, 3, 1}});
  EXPECT_TRUE(part.equal(small_field().slice(0, 1, 12, 4).slice(1, 0, 10, 3).slice(2, 2, 3)));
}

TEST_F(Hdf5Test, RefusesRangesOutsideTheDataset) {
  write_hdf5(path("a.h5"), "field", small_field());
  const Hdf5Dataset dataset(path("a.h5"), "field");
  EXPECT_THAT(error_of<SpecMismatch>([&] { dataset.read_rows(3, 13); }),
              HasSubstr("got range 3:13:1 of dim 0; expected it inside 0:12"));
  error_of<SpecMismatch>([&] { dataset.read_rows(-1, 2); });
  error_of<SpecMismatch>([&] { dataset.read_rows(2, 1); });
  error_of<SpecMismatch>([&] { dataset.read({{}, {}, {}, {}}); });
}

TEST_F(Hdf5Test, ThreadsReadAtOnce) {
  write_hdf5(path("a.h5"), "field", small_field(), {5, 3, 2});
  std::vector<at::Tensor> parts(4);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      for (int repeat = 0; repeat < 50; ++repeat) {
        parts[static_cast<size_t>(rank)] =
            Hdf5Dataset(path("a.h5"), "field").read_rows(3 * rank, 3 * rank + 3);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(at::cat(parts).equal(small_field()));
}

TEST_F(Hdf5Test, NamesAMissingFileAndAFileThatIsNotHdf5) {
  EXPECT_THAT(error_of<FileError>([&] { Hdf5Dataset(path("no.h5"), "x"); }), HasSubstr("no file"));
  EXPECT_THAT(error_of<FileError>([&] { Hdf5Dataset(folder(), "x"); }), HasSubstr("got a folder"));
  write_file_atomically(path("text.h5"), "not HDF5");
  EXPECT_THAT(error_of<FileError>([&] { Hdf5Dataset(path("text.h5"), "x"); }),
              HasSubstr("is not an HDF5 file"));
}

TEST_F(Hdf5Test, NamesATruncatedFile) {
  write_hdf5(path("a.h5"), "field", small_field(), {5, 3, 2});
  std::filesystem::resize_file(path("a.h5"), std::filesystem::file_size(path("a.h5")) / 2);
  const std::string error = error_of<FileError>([&] { Hdf5Dataset(path("a.h5"), "field"); });
  EXPECT_THAT(error, HasSubstr("truncated file"));
  EXPECT_THAT(error, HasSubstr("fetch it again"));
}

TEST_F(Hdf5Test, NamesDamagedData) {
  write_hdf5(path("a.h5"), "field", at::randint(0, 255, {64, 64}, at::kByte), {64, 64});
  std::string bytes = testing::text_of(path("a.h5"));
  const size_t middle =
      bytes.size() - 2048;  // inside the compressed chunk, which fills the end of the file
  bytes.replace(middle, 64, std::string(64, '\x55'));
  write_file_atomically(path("a.h5"), bytes);
  EXPECT_THAT(error_of<FileError>([&] { Hdf5Dataset(path("a.h5"), "field").read(); }),
              HasSubstr("The file is damaged"));
}

TEST_F(Hdf5Test, NamesAMissingDatasetAWrongShapeAndAnOddElementType) {
  write_hdf5(path("a.h5"), "field", small_field());
  EXPECT_THAT(error_of<FileError>([&] { Hdf5Dataset(path("a.h5"), "other"); }),
              HasSubstr("no dataset 'other'"));
  EXPECT_THAT(error_of<FileError>([&] {
                Hdf5Dataset(path("a.h5"), "field").require_sizes({12, 10});
              }),
              HasSubstr("has shape [12, 10, 4]; expected [12, 10]"));
  testing::write_hdf5_string(path("b.h5"), "name");
  EXPECT_THAT(error_of<FileError>([&] { Hdf5Dataset(path("b.h5"), "name"); }),
              HasSubstr("element type"));
}

TEST_F(Hdf5Test, ErrorsPrintNothingOfHdf5sOwn) {
  ::testing::internal::CaptureStderr();
  error_of<FileError>([&] { Hdf5Dataset(path("no.h5"), "x"); });
  write_hdf5(path("a.h5"), "field", small_field());
  std::thread([&] { error_of<FileError>([&] { Hdf5Dataset(path("a.h5"), "other"); }); }).join();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(Hdf5Test, ReadsWhatH5pyWrites) {
  SHARD_REQUIRE_PYTHON_MODULE("h5py");
  testing::python(
      "import h5py, numpy; f = h5py.File('" + path("a.h5") +
      "', 'w'); f.create_dataset('x', data=numpy.arange(60, dtype='f4').reshape(12, 5), "
      "chunks=(5, 2), compression='gzip', shuffle=True)");
  EXPECT_TRUE(Hdf5Dataset(path("a.h5"), "x")
                  .read_rows(4, 9)
                  .equal(at::arange(60, at::kFloat).view({12, 5}).slice(0, 4, 9)));
}

}  // namespace
}  // namespace shard::io
