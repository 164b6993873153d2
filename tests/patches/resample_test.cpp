// SPDX-License-Identifier: Apache-2.0
// What the image filters have in common: where rows of their results lie, and what they refuse.
#include <gtest/gtest.h>
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <shard/testing.h>
#include <support/rank_errors.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;

struct Filter {
  std::string name;
  std::function<Tensor(const Tensor& x, at::IntArrayRef size)> resample;
};
std::ostream& operator<<(std::ostream& out, const Filter& filter) { return out << filter.name; }

class Filters : public ::testing::TestWithParam<Filter> {};

TEST_P(Filters, RowsBelongToTheOwnerOfTheirPlaceInTheInputAfterOneExchange) {
  for (const int64_t rows : {int64_t{9}, int64_t{36}}) {  // half and twice as many
    run_ranks(3, [rows](World& world) {
      const Tensor x =
          scatter_tensor(torch::randn({1, 2, 18, 5}), 0, world.mesh(), {Shard(2)}, {8, 0, 10});
      const CommCounter counter;
      const Tensor y = GetParam().resample(x, {rows, 3});
      EXPECT_EQ(ShardTensor(y).spec().partition(), (Partition{rows * 8 / 18, 0, rows * 10 / 18}));
      EXPECT_EQ(counter.calls("exchange"), 1);
      EXPECT_EQ(counter.calls(), 1) << counter.table();
    });
  }
}

TEST_P(Filters, SizeZeroIsRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "positive spatial sizes", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(torch::randn({1, 2, 6, 6}), 0, mesh, {Shard(2)});
    return [x] { GetParam().resample(x, {0, 12}); };
  });
}

INSTANTIATE_TEST_SUITE_P(Of, Filters,
                         ::testing::Values(Filter{"bicubic",
                                                  [](const Tensor& x, auto size) {
                                                    return at::upsample_bicubic2d(x, size, false);
                                                  }},
                                           Filter{"antialiased_bilinear",
                                                  [](const Tensor& x, auto size) {
                                                    return at::_upsample_bilinear2d_aa(x, size,
                                                                                       false);
                                                  }},
                                           Filter{"antialiased_bicubic",
                                                  [](const Tensor& x, auto size) {
                                                    return at::_upsample_bicubic2d_aa(x, size,
                                                                                      false);
                                                  }}),
                         [](const auto& info) { return info.param.name; });

/// LibTorch 2.11 repeats the first row where an image becomes one column of another number of rows
/// (docs/limits.md); one row it makes right.
TEST(AntialiasedFilters, ToOneColumnAreRight) {
  run_ranks(3, [](World& world) {
    const Tensor image = torch::randn({2, 2, 7, 5}, at::kDouble);
    const auto resized = [](const Tensor& t, bool is_cubic, at::IntArrayRef size) {
      return is_cubic ? at::_upsample_bicubic2d_aa(t, size, false)
                      : at::_upsample_bilinear2d_aa(t, size, false);
    };
    for (const bool is_cubic : {false, true}) {
      const Tensor want =
          resized(image.transpose(2, 3).contiguous(), is_cubic, {1, 4}).transpose(2, 3);
      for (const int64_t dim : {2, 3}) {
        const Tensor x = scatter_tensor(image, 0, world.mesh(), {Shard(dim)});
        const Tensor y = resized(x, is_cubic, {4, 1});
        EXPECT_LE(relative_error(ShardTensor(y).full(), want), 1e-12) << dim;
      }
    }
  });
}

}  // namespace
}  // namespace shard::testing
