// SPDX-License-Identifier: Apache-2.0
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <shard/launch.h>
#include <shard/memory.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <thread>

namespace shard::testing {
namespace {

constexpr int64_t kMegabyte = 1 << 20;

torch::Tensor megabytes(int64_t n) { return torch::empty({n * kMegabyte}, torch::kByte); }

TEST(MemoryAccount, CountsLiveAndPeakBytes) {
  const MemoryAccountScope scope;
  MemoryAccount& account = MemoryAccount::current();
  const torch::Tensor kept = megabytes(1);
  { const torch::Tensor passing = megabytes(3); }
  EXPECT_EQ(account.live(), kMegabyte);
  EXPECT_EQ(account.peak(), 4 * kMegabyte);
  EXPECT_EQ(account.largest(), 3 * kMegabyte);
  account.reset_peak();
  EXPECT_EQ(account.peak(), kMegabyte);
  EXPECT_EQ(account.largest(), 0);
}

TEST(MemoryAccount, IsTheOneOfTheInnermostScope) {
  const MemoryAccountScope outer;
  MemoryAccount& account = MemoryAccount::current();
  torch::Tensor inside;
  {
    const MemoryAccountScope inner;
    inside = megabytes(1);
    EXPECT_EQ(MemoryAccount::current().live(), kMegabyte);
  }
  EXPECT_EQ(&MemoryAccount::current(), &account);
  EXPECT_EQ(account.live(), 0);
}

TEST(MemoryAccount, IsCreditedWhereverTheMemoryIsFreed) {
  const MemoryAccountScope scope;
  torch::Tensor tensor = megabytes(2);
  std::thread([&] { tensor.reset(); }).join();
  EXPECT_EQ(MemoryAccount::current().live(), 0);
}

TEST(MemoryAccount, OutlivesItsScopeAsLongAsMemoryIsBookedOnIt) {
  torch::Tensor survivor;
  {
    const MemoryAccountScope scope;
    survivor = megabytes(1);
  }
  for (int i = 0; i < 3; ++i) {
    const MemoryAccountScope scope;
    EXPECT_EQ(MemoryAccount::current().live(), 0);
    EXPECT_EQ(MemoryAccount::current().peak(), 0);
  }
}

TEST(MemoryAccount, IsOnePerRank) {
  run_ranks(3, [](World& world) {
    const torch::Tensor tensor = megabytes(world.rank() + 1);
    world.comm().barrier();
    EXPECT_EQ(MemoryAccount::current().live(), (world.rank() + 1) * kMegabyte);
    world.comm().barrier();
  });
}

struct AllocateInBackward : torch::autograd::Function<AllocateInBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/, torch::Tensor x,
                               int64_t depth) {
    depth_left = depth;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list gradients) {
    nest(depth_left);
    return {gradients[0], torch::Tensor()};
  }
  static void nest(int64_t depth) {
    if (depth == 0) {
      seen = &MemoryAccount::current();
      return;
    }
    const torch::AutoGradMode on(true);
    const torch::Tensor x = torch::ones({1}, torch::requires_grad());
    AllocateInBackward::apply(x, depth - 1).sum().backward();
  }
  static thread_local int64_t depth_left;
  static std::atomic<MemoryAccount*> seen;
};
thread_local int64_t AllocateInBackward::depth_left = 0;
std::atomic<MemoryAccount*> AllocateInBackward::seen = nullptr;

// Nested backward deeper than 60 goes on in a thread of LibTorch's pool.
TEST(MemoryAccount, FollowsTheRankToThreadsOfDeepBackward) {
  run_ranks(1, [](World& /*world*/) {
    AllocateInBackward::nest(70);
    EXPECT_EQ(AllocateInBackward::seen, &MemoryAccount::current());
  });
}

TEST(CpuAllocator, AlignsAndKeepsLibTorchsContract) {
  c10::Allocator& allocator = *c10::GetCPUAllocator();
  for (const size_t bytes : {1u, 17u, 64u, 1000u, 5000000u}) {
    const c10::DataPtr data = allocator.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data.get()) % 64, 0u);
    EXPECT_EQ(data.get(), data.get_context());
    EXPECT_EQ(data.get_deleter(), allocator.raw_deleter());
  }
  EXPECT_EQ(allocator.allocate(0).get(), nullptr);
  void* raw = allocator.raw_allocate(100);
  allocator.raw_deallocate(raw);
}

TEST(CpuAllocator, SaysHowMuchWasAskedForWhenMemoryIsShort) {
  try {
    torch::empty({int64_t{1} << 60}, torch::kByte);
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_NE(text.find("[memory] out of memory: got a request for 1152921504606846976 bytes"),
              std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace shard::testing
