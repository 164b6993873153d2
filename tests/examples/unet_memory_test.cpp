// SPDX-License-Identifier: Apache-2.0
// The memory of a training step of the example's U-Net: every rank pays for its share of the rows
// and no more.
#include <global_field/unet.h>
#include <gtest/gtest.h>
#include <shard/launch.h>
#include <shard/memory.h>
#include <shard/tensor.h>
#include <torch/torch.h>

#include "support/resident.h"

namespace global_field {
namespace {

using at::Tensor;
using shard::testing::resident_bytes;

constexpr int64_t kHeight = 256;
constexpr int64_t kWidth = 192;

/// Bytes of activations and gradients of one step, beyond what was live before it, and of the
/// largest tensor.
struct Use {
  int64_t peak = 0;
  int64_t largest = 0;
};
Use use_of_step(UNet& net, const Tensor& x, const Tensor& y) {
  const auto step = [&] { torch::mse_loss(net->forward(x), y).backward(); };
  step();  // weight gradients exist from now on
  auto& account = shard::MemoryAccount::current();
  account.reset_peak();
  const int64_t before = account.live();
  step();
  return {account.peak() - before, account.largest()};
}

TEST(UNetMemory, PeaksAtTheShareOfTheRowsOnFourUnevenRanks) {
  const shard::Partition rows{112, 72, 48, 24};
  const Tensor x = torch::randn({1, 5, kHeight, kWidth});
  const Tensor y = torch::randn({1, 1, kHeight, kWidth});
  Use plain;
  shard::run_ranks(1, [&](shard::World&) {
    UNet net(5, 16, 2);
    plain = use_of_step(net, x, y);
  });
  shard::run_ranks(4, [&](shard::World& world) {
    UNet net(5, 16, 2);
    const auto mesh = world.mesh();
    const auto share = static_cast<double>(rows[static_cast<size_t>(world.rank())]) / kHeight;
    const Tensor mine = shard::scatter_tensor(x, 0, mesh, {shard::Shard(2)}, rows);
    const Tensor target = shard::scatter_tensor(y, 0, mesh, {shard::Shard(2)}, rows);
    const Use use = use_of_step(net, mine, target);
    const auto peak = static_cast<double>(use.peak);
    const auto largest = static_cast<double>(use.largest);
    if (world.rank() == 0) {  // which has the most rows
      EXPECT_LE(peak, share * static_cast<double>(plain.peak) * 1.08) << "plain " << plain.peak;
      EXPECT_LE(largest, share * static_cast<double>(plain.largest) * 1.2)
          << "plain " << plain.largest;
    }
  });
}

TEST(UNetMemory, DoesNotGrowOverAThousandSteps) {
  constexpr int kSteps = 1000;
  constexpr int kWarm = 200;
  shard::run_ranks(4, [&](shard::World& world) {
    UNet net(5, 4, 1);
    const auto mesh = world.mesh();
    const auto x = shard::scatter_tensor(torch::randn({1, 5, 32, 16}), 0, mesh, {shard::Shard(2)});
    const auto y = shard::scatter_tensor(torch::randn({1, 1, 32, 16}), 0, mesh, {shard::Shard(2)});
    torch::optim::Adam adam(net->parameters(), 1e-3);
    int64_t live = 0;
    int64_t resident = 0;
    for (int step = 0; step < kSteps; ++step) {
      if (step == kWarm) {
        live = shard::MemoryAccount::current().live();
        resident = resident_bytes();
      }
      adam.zero_grad();
      torch::mse_loss(net->forward(x), y).backward();
      adam.step();
    }
    world.comm().barrier();
    EXPECT_EQ(shard::MemoryAccount::current().live(), live);
    EXPECT_LE(resident_bytes(), resident + resident / 20 + (4 << 20));
  });
}

}  // namespace
}  // namespace global_field
