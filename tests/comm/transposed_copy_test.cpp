// SPDX-License-Identifier: Apache-2.0
#include "comm/transposed_copy.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

using at::Tensor;

Tensor numbered(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  const int64_t count = c10::multiply_integers(sizes);
  return torch::arange(count, at::kLong).remainder(251).to(dtype).view(sizes);
}

TEST(TransposedCopy, EqualsLibTorchsForAllOrdersOfDims) {
  const std::vector<int64_t> sizes{9, 17, 5, 24};
  for (const auto dtype :
       {at::kHalf, at::kFloat, at::kDouble, at::kLong, at::kComplexFloat, at::kComplexDouble}) {
    std::vector<int64_t> order{0, 1, 2, 3};
    int copied = 0;
    do {
      const Tensor from = numbered(sizes, dtype).permute(order);
      const Tensor to = torch::zeros(from.sizes(), dtype);
      if (!copy_transposed(to, from)) {
        EXPECT_TRUE(torch::equal(to, torch::zeros_like(to)));
        continue;
      }
      ++copied;
      EXPECT_TRUE(torch::equal(to, from)) << dtype << " " << order;
    } while (std::next_permutation(order.begin(), order.end()));
    // The innermost dim of both is long, and another one: 2 of the 4 dims as the last.
    EXPECT_EQ(copied, 12) << dtype;
  }
}

TEST(TransposedCopy, OfPartsLeavesTheRestAlone) {
  const Tensor from = numbered({64, 130}, at::kFloat).t().narrow(0, 3, 100).narrow(1, 1, 60);
  const Tensor whole = torch::full({120, 80}, -1.0);
  const Tensor to = whole.narrow(0, 11, 100).narrow(1, 7, 60);
  ASSERT_TRUE(copy_transposed(to, from));
  EXPECT_TRUE(torch::equal(to, from));
  EXPECT_EQ((whole == -1).sum().item<int64_t>(), 120 * 80 - 100 * 60);
}

TEST(TransposedCopy, LeavesOthersToLibTorch) {
  const Tensor from = numbered({64, 128}, at::kFloat);
  EXPECT_FALSE(copy_transposed(torch::empty({64, 128}), from)) << "not transposed";
  EXPECT_FALSE(copy_transposed(torch::empty({8, 8}), from.narrow(0, 0, 8).narrow(1, 0, 8).t()))
      << "small";
  const Tensor waves = torch::complex(from, from);
  EXPECT_FALSE(copy_transposed(torch::empty({128, 64}, at::kComplexFloat), waves.conj().t()));
  EXPECT_FALSE(copy_transposed(torch::empty({64, 2048}), torch::ones({1, 1}).expand({64, 2048})));
}

}  // namespace
}  // namespace shard::testing
