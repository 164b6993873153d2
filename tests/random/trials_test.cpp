// SPDX-License-Identifier: Apache-2.0
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <stdexcept>
#include <string>

#include "random/trial_sampler.h"
#include "random/tried_once.h"

namespace shard::testing {
namespace {

using at::Tensor;

TEST(Trials, DrawDifferentNumbersWhateverTheParameters) {
  for (const char* op : {"bernoulli_.float", "uniform_", "normal_", "log_normal_", "exponential_",
                         "cauchy_", "geometric_"}) {
    const Sampler zeros{c10::str("aten::", op),
                        [](const Tensor& numbers, const at::Generator&) { numbers.zero_(); }};
    const Tensor numbers = torch::empty({40});
    trial_sampler(zeros).fill(numbers, at::detail::createCPUGenerator(5));
    EXPECT_LT(numbers.min().item<float>(), numbers.max().item<float>()) << op;
  }
}

TEST(Trials, DrawAsTheOpDoesWhereItIsNotKnown) {
  const Sampler ones{"test::ones",
                     [](const Tensor& numbers, const at::Generator&) { numbers.fill_(1); }};
  const Tensor numbers = torch::zeros({3});
  trial_sampler(ones).fill(numbers, at::detail::createCPUGenerator(5));
  EXPECT_TRUE(at::equal(numbers, torch::ones({3})));
}

TEST(Trials, AreDoneOnceUnlessTheyThrow) {
  TriedOnce<std::string, int> tried;
  int trials = 0;
  const auto trial = [&] {
    if (++trials == 1) throw std::runtime_error("out of memory");
    return trials;
  };
  EXPECT_THROW(tried.find("a", trial), std::runtime_error);
  EXPECT_EQ(tried.find("a", trial), 2);
  EXPECT_EQ(tried.find("a", trial), 2);
  EXPECT_EQ(tried.find("b", trial), 3);
}

}  // namespace
}  // namespace shard::testing
