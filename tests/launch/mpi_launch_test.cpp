// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <shard/launch.h>
#include <shard/memory.h>
#include <torch/torch.h>

#include <sstream>

#include "mpi_world.h"

namespace shard::testing {
namespace {

int launch_here(const RankFunction& body, const LaunchOptions& options = {}) {
  const char* program = "test";
  return launch(1, const_cast<char**>(&program), body, options);
}

/// Whether all ranks hold the same values.
void expect_equal_on_ranks(const Communicator& comm, const torch::Tensor& tensor) {
  torch::Tensor theirs = tensor.clone();
  comm.broadcast(theirs, 0);
  EXPECT_TRUE(at::equal(theirs, tensor)) << "rank " << comm.rank();
}

TEST(MpiLaunch, TakesTheRanksOfMpirun) {
  EXPECT_EQ(launch_here([](World& world) {
              EXPECT_EQ(world.size(), mpi_world().size());
              EXPECT_EQ(world.rank(), mpi_world().rank());
              EXPECT_EQ(world.launcher(), Launcher::Mpi);
            }),
            0);
}

TEST(MpiLaunch, BuildsEqualModelsOnAllRanks) {
  launch_here([](World& world) {
    const torch::nn::Linear first(20, 20);
    expect_equal_on_ranks(world.comm(), first->weight.detach());
    torch::rand({world.rank() + 1});
    torch::manual_seed(5);
    const torch::nn::Linear second(20, 20);
    expect_equal_on_ranks(world.comm(), second->weight.detach());
    torch::rand({world.rank() + 1});
    manual_seed(5);
    EXPECT_TRUE(at::equal(torch::nn::Linear(20, 20)->weight, second->weight));
    EXPECT_EQ(default_generator().current_seed(), 5u);
  });
}

TEST(MpiLaunch, StartsFromTheSeedOfTheOptions) {
  LaunchOptions options;
  options.seed = 11;
  launch_here([](World&) { EXPECT_EQ(default_generator().current_seed(), 11u); }, options);
}

TEST(MpiLaunch, OpensAMemoryAccount) {
  launch_here([](World&) {
    const torch::Tensor tensor = torch::empty({1000}, torch::kByte);
    EXPECT_EQ(MemoryAccount::current().live(), 1000);
  });
}

// Both backends sum in rank order with one kernel.
TEST(MpiReductions, HaveTheBitsOfThreadRanks) {
  const auto reduce = [](const Communicator& comm, at::ScalarType dtype, int64_t count) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(comm.rank()));
    torch::Tensor tensor = at::randn({count}, generator, torch::kDouble).to(dtype);
    comm.all_reduce(tensor);
    return tensor;
  };
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    for (const int64_t count : {10, 100000}) {
      const torch::Tensor here = reduce(mpi_world(), dtype, count);
      run_ranks(mpi_world().size(), [&](World& world) {
        EXPECT_TRUE(at::equal(reduce(world.comm(), dtype, count), here)) << dtype;
      });
    }
  }
}

}  // namespace
}  // namespace shard::testing
