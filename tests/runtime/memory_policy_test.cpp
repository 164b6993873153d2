// SPDX-License-Identifier: Apache-2.0
// The malloc policy: what large ops free stays in the process, so that the next step writes pages
// it has already, also on ranks.
#include <gtest/gtest.h>
#include <shard/launch.h>
#include <sys/resource.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace shard::testing {
namespace {

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

/// Page faults of ten large convolutions after a warm-up.
void expect_few_page_faults() {
  const torch::Tensor x = torch::ones({1, 8, 512, 512});
  const torch::Tensor w = torch::ones({8, 8, 3, 3});
  const auto convolve = [&] { return at::conv2d(x, w, {}, 1, 1); };
  for (int i = 0; i < 3; ++i) convolve();
  const int64_t before = page_faults();
  for (int i = 0; i < 10; ++i) convolve();
  const auto pages_an_output = static_cast<int64_t>(x.nbytes()) / sysconf(_SC_PAGESIZE);
  EXPECT_LT(page_faults() - before, pages_an_output / 4);
}

bool has_policy() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;  // their malloc knows no policy
#else
  const char* memory = std::getenv("SHARD_CPU_MEMORY");
  return memory == nullptr || std::string(memory) != "system";
#endif
}

TEST(MemoryPolicy, RepeatedLargeOpsTouchNoNewPages) {
  if (!has_policy()) GTEST_SKIP() << "malloc without the policy";
  expect_few_page_faults();
}

TEST(MemoryPolicy, RepeatedLargeOpsOfARankTouchNoNewPages) {
  if (!has_policy()) GTEST_SKIP() << "malloc without the policy";
  run_ranks(1, [](World&) { expect_few_page_faults(); });
}

}  // namespace
}  // namespace shard::testing
