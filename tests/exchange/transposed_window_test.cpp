// SPDX-License-Identifier: Apache-2.0
// Geometry of transposed windows: output sizes as LibTorch's, every output row has one owner, and
// LibTorch's op on a part's rows makes exactly its output rows.
#include <gtest/gtest.h>
#include <shard/transposed_window.h>
#include <torch/types.h>

#include <numeric>

namespace shard::testing {
namespace {

const std::vector<Partition> kPartitions{{7}, {4, 3}, {5, 2}, {1, 1, 5}, {0, 3, 4}, {3, 0, 4, 0}};

template <class Check>
void for_each_window(const Check& check) {
  for (const int64_t kernel : {1, 2, 3, 4, 5}) {
    for (const int64_t stride : {1, 2, 3, 5}) {
      for (const int64_t padding : {0, 1, 3}) {
        for (const int64_t dilation : {1, 2}) {
          for (const int64_t output_padding : {int64_t{0}, std::max(stride, dilation) - 1}) {
            const TransposedWindow window{kernel, stride, padding, dilation, output_padding};
            if (window.output_size(7) > 0) check(window);
          }
        }
      }
    }
  }
}

torch::Tensor spread(const torch::Tensor& rows, const TransposedWindow& w) {
  const auto kernel = torch::arange(1, w.kernel + 1, rows.options()).view({1, 1, -1});
  return torch::conv_transpose1d(rows, kernel, {}, w.stride, w.padding, w.output_padding, 1,
                                 w.dilation);
}

TEST(TransposedWindow, PartsMakeTheOutputOfTheWhole) {
  const auto x = torch::rand({1, 1, 7}, torch::kDouble);
  for_each_window([&](const TransposedWindow& w) {
    const auto y = spread(x, w);
    ASSERT_EQ(w.output_size(7), y.size(2));
    for (const auto& partition : kPartitions) {
      int64_t next = 0;
      for (const auto& part : transposed_parts(w, partition)) {
        EXPECT_EQ(part.out.begin, next);
        next = part.out.end;
        if (part.out.size() == 0) continue;
        const auto zeros = [&](int64_t rows) { return torch::zeros({1, 1, rows}, torch::kDouble); };
        const auto rows = torch::cat(
            {zeros(part.before), x.slice(2, part.in.begin, part.in.end), zeros(part.after)}, 2);
        TransposedWindow local = w;
        local.padding = part.padding;
        local.output_padding = part.output_padding;
        EXPECT_LT(part.output_padding, w.stride);
        EXPECT_TRUE(torch::allclose(spread(rows, local), y.slice(2, part.out.begin, part.out.end)));
      }
      EXPECT_EQ(next, y.size(2));
    }
  });
}

TEST(TransposedWindow, EmptyShardsHaveNoOutputs) {
  const TransposedWindow doubling{4, 2, 1};
  EXPECT_EQ(doubling.output_partition({3, 0, 4, 0}), (Partition{6, 0, 8, 0}));
}

}  // namespace
}  // namespace shard::testing
