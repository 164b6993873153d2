// SPDX-License-Identifier: Apache-2.0
#include "random/integer_range.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>

namespace shard::testing {
namespace {

uint32_t next_word(const at::Generator& generator) {
  return generator.get<at::CPUGeneratorImpl>()->random();
}

/// How many words of the generator LibTorch takes for a number.
int64_t words_of(int64_t from, std::optional<int64_t> to, at::ScalarType dtype) {
  const auto other = at::detail::createCPUGenerator(5);
  const auto generator = at::detail::createCPUGenerator(5);
  torch::empty({1}, dtype).random_(from, to, generator);
  const uint32_t next = next_word(generator);
  int64_t words = 0;
  while (next_word(other) != next) ++words;
  return words;
}

TEST(IntegerRange, DecidesHowManyWordsANumberIsMadeOf) {
  constexpr int64_t kBorder = int64_t{1} << 28;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  struct Call {
    at::ScalarType dtype;
    int64_t from;
    std::optional<int64_t> to;
  };
  for (const auto& [dtype, from, to] : std::vector<Call>{
           {at::kLong, 0, kBorder - 1},
           {at::kLong, 0, kBorder},
           {at::kLong, -5, kBorder - 5},
           {at::kLong, -5, kBorder - 6},
           {at::kLong, std::numeric_limits<int64_t>::lowest(), kMost},
           {at::kLong, std::numeric_limits<int64_t>::lowest(), std::nullopt},
           {at::kLong, 0, std::nullopt},
           {at::kLong, kMost - kBorder + 1, std::nullopt},
           {at::kLong, kMost - kBorder + 2, std::nullopt},
           {at::kLong, kMost - 1, std::nullopt},
           {at::kInt, 0, std::nullopt},
           {at::kInt, std::numeric_limits<int>::max() - 9, std::nullopt},
           {at::kByte, 0, std::nullopt},
           {at::kBool, 0, std::nullopt},
           {at::kUInt32, 0, std::nullopt},
           {at::kFloat, 0, std::nullopt},
           {at::kFloat, 0, kBorder},  // 2^28 - 1 is no float: LibTorch stops before it
           {at::kFloat, 0, kBorder + 1},
           {at::kFloat, 0, kBorder + 25},
           {at::kFloat, -kBorder, std::nullopt},
           {at::kDouble, 0, std::nullopt},
           {at::kDouble, 0, kBorder},
           {at::kHalf, 0, std::nullopt},
           {at::kBFloat16, -7, std::nullopt}}) {
    const uint64_t range = integer_range(from, to, dtype);
    const bool is_wide = range == 0 || range >= uint64_t{kBorder};
    EXPECT_EQ(words_of(from, to, dtype), is_wide ? 2 : 1)
        << dtype << ' ' << from << ' ' << to.value_or(0) << ": " << range;
  }
}

}  // namespace
}  // namespace shard::testing
