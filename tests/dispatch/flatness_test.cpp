// SPDX-License-Identifier: Apache-2.0
// Nothing grows with the number of calls: neither time nor memory, although every call has another
// scalar and every move other pieces.
#include <gtest/gtest.h>
#include <shard/launch.h>
#include <shard/memory.h>
#include <shard/primitives.h>
#include <torch/types.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "support/resident.h"

namespace shard::testing {
namespace {

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Thread seconds of a fixed piece of work by plain LibTorch: how fast the machine is just now.
double plain_seconds() {
  torch::Tensor x = torch::ones({64, 4});
  const double begin = thread_seconds();
  for (int i = 0; i < 5000; ++i) x = (x * 1.0001).clamp_max(2);
  return thread_seconds() - begin;
}

TEST(Flatness, OfAHundredThousandCallsWithChangingScalarsAndSplits) {
  constexpr int kBlocks = 20;
  constexpr int kCalls = 5000;
  constexpr int64_t kRows = 64;
  run_ranks(2, [](World& world) {
    auto x = scatter_tensor(torch::ones({kRows, 4}), 0, world.mesh(), {Shard(0)});
    std::vector<double> cost;  // of every block, in units of the plain work
    int64_t live = 0;
    int64_t resident = 0;
    int64_t call = 0;
    for (int block = 0; block < kBlocks; ++block) {
      if (block == 2) {  // what is kept for good has been made
        live = MemoryAccount::current().live();
        resident = resident_bytes();
      }
      const double unit = plain_seconds();
      const double begin = thread_seconds();
      for (int i = 0; i < kCalls; ++i, ++call) {
        const auto scale = 1 + 1e-9 * static_cast<double>(call % 7919);
        x = (x * scale).clamp_max(2 + scale);
        if (i % 10 != 0) continue;
        const int64_t first = call * 31 % (kRows + 1);
        x = redistribute(x, spec_of(x)->with(Shard(0), x.sizes(), {first, kRows - first}));
      }
      x = redistribute(x, spec_of(x)->with(Shard(0), x.sizes(), {kRows / 2, kRows / 2}));
      cost.push_back((thread_seconds() - begin) / unit);
    }
    EXPECT_EQ(MemoryAccount::current().live(), live);
    EXPECT_LE(resident_bytes(), resident + (4 << 20));
    // The quietest of the last blocks: what grows with the calls shows in each of them.
    const double early = *std::min_element(cost.begin() + 2, cost.begin() + 8);
    const double late = *std::min_element(cost.end() - 8, cost.end());
    EXPECT_LE(late, 2 * early);
  });
}

}  // namespace
}  // namespace shard::testing
