// SPDX-License-Identifier: Apache-2.0
#include "random/bernoulli_numbers.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "random/philox.h"
#include "random/philox_device.h"

namespace shard::testing {
namespace {

using at::Tensor;

TEST(Philox, GivesThePublishedWords) {  // known-answer tests of Random123
  const auto words = [](uint64_t seed, int64_t thread, uint64_t block) {
    return philox_words(seed, torch::full({4}, thread), torch::arange(4), 4 * block);
  };
  EXPECT_TRUE(at::equal(words(0, 0, 0),
                        torch::tensor({0x6627E8D5L, 0xE169C58DL, 0xBC57AC4CL, 0x9B00DBD8L})));
}

TEST(Philox, IsLibTorchsEngine) {
  for (const uint64_t seed : {uint64_t{3}, uint64_t{0xFEDCBA9876543210}}) {
    for (const int64_t thread :
         {int64_t{0}, int64_t{17}, int64_t{1} << 33, int64_t{0x7FFFFFFFFFFFFFFF}}) {
      for (const uint64_t offset : {uint64_t{0}, uint64_t{12}, uint64_t{1} << 36}) {
        const auto expected = philox(seed, static_cast<uint64_t>(thread), offset);
        const Tensor got = philox_words(seed, torch::full({4}, thread), torch::arange(4), offset);
        for (size_t lane = 0; lane < 4; ++lane) {
          EXPECT_EQ(got[static_cast<int64_t>(lane)].item<int64_t>(), expected[lane])
              << seed << ' ' << thread << ' ' << offset;
        }
      }
    }
  }
}

/// As LibTorch's CUDA kernel does it, which reserves ten words for its one draw of four.
Tensor bernoulli(const Tensor& probabilities, const at::Generator& generator) {
  const uint64_t offset = PhiloxDevice::take(generator, 3);
  const Tensor drawn = torch::empty_like(probabilities);
  const auto* p = probabilities.const_data_ptr<float>();
  auto* to = drawn.mutable_data_ptr<float>();
  for (int64_t place = 0; place < drawn.numel(); ++place) {
    const auto words = philox(generator.current_seed(), static_cast<uint64_t>(place / 4), offset);
    to[place] = uniform_of(words[static_cast<size_t>(place % 4)]) <= p[place] ? 1 : 0;
  }
  return drawn;
}

TEST(BernoulliNumbers, AreThoseThatTheKernelCompares) {
  const auto generator = PhiloxGenerator::make(11);
  EXPECT_EQ(taken_by_bernoulli(&bernoulli, generator, at::kCPU), 12U);
  EXPECT_EQ(generator.get_offset(), 0U) << "a trial leaves the generator as it is";
}

TEST(BernoulliNumbers, AreNotTakenForThoseOfAnotherKernel) {
  const auto other = [](const Tensor& probabilities, const at::Generator& generator) {
    return 1 - bernoulli(1 - probabilities, generator);
  };
  EXPECT_EQ(taken_by_bernoulli(other, PhiloxGenerator::make(11), at::kCPU), 0U);
  const auto growing = [](const Tensor& probabilities, const at::Generator& generator) {
    PhiloxDevice::take(generator, probabilities.numel());
    auto moved = generator;
    moved.set_offset(generator.get_offset() - 4 * static_cast<uint64_t>(probabilities.numel()));
    const Tensor drawn = bernoulli(probabilities, generator);
    PhiloxDevice::take(generator, probabilities.numel());
    return drawn;
  };
  EXPECT_EQ(taken_by_bernoulli(growing, PhiloxGenerator::make(11), at::kCPU), 0U);
}

TEST(BernoulliNumbers, OfABox) {
  const auto generator = PhiloxGenerator::make(5);
  const Tensor whole =
      bernoulli_numbers(Runs({1300, 70, 30}, {0, 0, 0}, {1300, 70, 30}), generator, at::kCPU)
          .view({1300, 70, 30});
  const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> boxes{
      {{100, 0, 0}, {1100, 70, 30}}, {{0, 3, 0}, {1300, 9, 30}}, {{7, 0, 29}, {1000, 70, 1}}};
  for (const auto& [begin, size] : boxes) {
    const Tensor part =
        bernoulli_numbers(Runs({1300, 70, 30}, begin, size), generator, at::kCPU).view(size);
    EXPECT_TRUE(at::equal(part, whole.narrow(0, begin[0], size[0])
                                    .narrow(1, begin[1], size[1])
                                    .narrow(2, begin[2], size[2])))
        << size;
  }
}

}  // namespace
}  // namespace shard::testing
