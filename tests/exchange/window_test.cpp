// SPDX-License-Identifier: Apache-2.0
// Window geometry: output sizes as LibTorch's, every output row has one owner, parts cover what
// they need.
#include <gtest/gtest.h>
#include <shard/exchange.h>
#include <torch/types.h>

#include <numeric>

namespace shard::testing {
namespace {

const std::vector<Partition> kPartitions{{12},      {6, 6},       {9, 3},   {1, 1, 10},
                                         {0, 5, 7}, {4, 0, 8, 0}, {5, 4, 3}};

int64_t sum(const Partition& partition) {
  return std::accumulate(partition.begin(), partition.end(), int64_t{0});
}

template <class Check>
void for_each_window(const Check& check) {
  for (const int64_t kernel : {1, 2, 3, 4, 5, 7}) {
    for (const int64_t stride : {1, 2, 3, 4}) {
      for (const int64_t padding : {0, 1, 2, 3, 4}) {
        for (const int64_t dilation : {1, 2}) check(Window{kernel, stride, padding, dilation});
      }
    }
  }
}

TEST(Window, OutputSizeIsThatOfConvolution) {
  for_each_window([](const Window& w) {
    for (const int64_t n : {1, 2, 5, 8}) {
      if (n + 2 * w.padding < w.reach()) {
        EXPECT_LE(w.output_size(n), 0);
        continue;
      }
      const auto y = torch::conv1d(torch::zeros({1, 1, n}), torch::zeros({1, 1, w.kernel}), {},
                                   w.stride, w.padding, w.dilation);
      EXPECT_EQ(w.output_size(n), y.size(2))
          << w.kernel << w.stride << w.padding << w.dilation << " " << n;
    }
  });
}

TEST(Window, CeilModeOutputSizeIsThatOfPooling) {
  for_each_window([](Window w) {
    if (w.padding > w.kernel / 2) return;
    w.ceil_mode = true;
    for (const int64_t n : {1, 2, 5, 8}) {
      if (w.output_size(n) <= 0) continue;
      const auto y = torch::max_pool1d(torch::zeros({1, 1, n}), w.kernel, w.stride, w.padding,
                                       w.dilation, true);
      EXPECT_EQ(w.output_size(n), y.size(2))
          << w.kernel << w.stride << w.padding << w.dilation << " " << n;
    }
  });
}

TEST(Window, OutputPartitionAddsUpToTheOutputSize) {
  for_each_window([](const Window& w) {
    for (const auto& input : kPartitions) {
      const auto output = w.output_partition(input);
      EXPECT_EQ(sum(output), w.output_size(12));
      for (size_t rank = 0; rank < input.size(); ++rank) {
        EXPECT_GE(output[rank], 0);
        if (input[rank] == 0) {
          EXPECT_EQ(output[rank], 0) << "an empty shard stays empty";
        }
      }
    }
  });
}

TEST(Window, OutputRowsBelongToTheOwnerOfTheirCentre) {
  for_each_window([](const Window& w) {
    for (const auto& input : kPartitions) {
      int64_t out = 0;
      int64_t begin = 0;
      const auto output = w.output_partition(input);
      for (size_t rank = 0; rank < input.size(); ++rank) {
        for (int64_t i = 0; i < output[rank]; ++i, ++out) {
          const auto centre =
              std::clamp<int64_t>(out * w.stride + (w.reach() - 1) / 2 - w.padding, 0, 11);
          EXPECT_TRUE(begin <= centre && centre < begin + input[rank]);
        }
        begin += input[rank];
      }
    }
  });
}

TEST(Window, SameWindowsKeepBoundariesAndAlignedOnesHalveThem) {
  for (const auto& input : kPartitions) {
    EXPECT_EQ((Window{3, 1, 1, 1}.output_partition(input)), input);
    EXPECT_EQ((Window{5, 1, 4, 2}.output_partition(input)), input);
    EXPECT_EQ((Window{1, 1, 0, 1}.output_partition(input)), input);
  }
  EXPECT_EQ((Window{2, 2, 0, 1}.output_partition({6, 2, 4})), (Partition{3, 1, 2}));
  EXPECT_EQ((Window{3, 2, 1, 1}.output_partition({6, 2, 4})), (Partition{3, 1, 2}));
  EXPECT_EQ((Window{4, 4, 0, 1}.output_partition({4, 8, 4})), (Partition{1, 2, 1}));
}

TEST(Window, AWindowOverAPaddedInputGivesItsBoundariesBack) {
  EXPECT_EQ((Window{3, 1, 0, 1}.output_partition({5, 4, 3 + 2})), (Partition{4, 4, 4}));
  EXPECT_EQ((Window{3, 1, 0, 1}.output_partition({1 + 4, 4, 4 + 1})), (Partition{4, 4, 4}));
}

TEST(Window, PartsHoldExactlyTheRowsOfTheirWindows) {
  for_each_window([](const Window& w) {
    for (const auto& input : kPartitions) {
      int64_t begin = 0;
      for (const auto& part : window_parts(w, input)) {
        EXPECT_EQ(part.out.begin, begin);
        begin = part.out.end;
        if (part.out.size() == 0) continue;
        EXPECT_EQ(part.before + part.in.size() + part.after,
                  (part.out.size() - 1) * w.stride + w.reach());
        EXPECT_TRUE(0 <= part.in.begin && part.in.begin <= part.in.end && part.in.end <= 12);
        EXPECT_GE(part.before, 0);
        EXPECT_GE(part.after, 0);
      }
    }
  });
}

TEST(HaloPlan, CutsRangesAtTheOwnersBoundaries) {
  const auto plan = make_halo_plan(0, {2, 0, 3}, {{{0, 5}}, {}, {{1, 3}, {0, 1}}});
  ASSERT_EQ(plan.segments[0].size(), 2U);
  EXPECT_EQ(plan.segments[0][0].owner, 0);
  EXPECT_EQ(plan.segments[0][1].owner, 2);
  EXPECT_EQ(plan.wanted_rows(0), 5);
  EXPECT_EQ(plan.halo_rows(0), 3);
  EXPECT_EQ(plan.halo_rows(1), 0);
  EXPECT_EQ(plan.segments[2].size(), 3U);
  EXPECT_EQ(plan.halo_rows(2), 2);
  EXPECT_TRUE(plan.communicates());
}

}  // namespace
}  // namespace shard::testing
