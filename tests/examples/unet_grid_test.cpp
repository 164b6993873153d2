// SPDX-License-Identifier: Apache-2.0
// The example's U-Net on meshes of two dims: training equals one process on the whole batch.
#include <global_field/unet.h>
#include <gtest/gtest.h>
#include <shard/comm_counter.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/sharded_check.h>
#include <torch/torch.h>

namespace global_field {
namespace {

using shard::Placements;
using shard::Shard;
using torch::Tensor;

UNet make_net() {
  shard::manual_seed(5);
  UNet net(3, 4, 1);
  net->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  for (Tensor& weight : net->parameters()) weight.add_(torch::randn_like(weight) * 0.1);
  return net;
}

/// Weights after three steps.
std::vector<Tensor> trained(const Tensor& x, const Tensor& y) {
  UNet net = make_net();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    optimizer.step();
  }
  return net->parameters();
}

void expect_same_training(const std::vector<shard::MeshDim>& dims, const Placements& placements,
                          const std::vector<shard::Partition>& partitions) {
  torch::manual_seed(9);
  const Tensor x = torch::randn({2, 3, 26, 24}, torch::kFloat64);
  const Tensor y = torch::randn({2, 1, 26, 24}, torch::kFloat64);
  std::vector<Tensor> want;
  shard::run_ranks(1, [&](shard::World&) { want = trained(x, y); });
  shard::run_ranks(4, [&](shard::World& world) {
    const auto mesh = world.mesh(dims);
    const auto got = trained(shard::scatter_tensor(x, 0, mesh, placements, partitions),
                             shard::scatter_tensor(y, 0, mesh, placements, partitions));
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_LE(shard::testing::relative_error(got[i], want[i]), 1e-10) << "weight " << i;
    }
  });
}

TEST(UNetGrid, BatchOverDdpAndRowsOverDomain) {
  expect_same_training({{"ddp", 2}, {"domain", 2}}, {Shard(0), Shard(2)}, {{}, {17, 9}});
}

TEST(UNetGrid, RowsAndColumns) {
  expect_same_training({{"rows", 2}, {"columns", 2}}, {Shard(2), Shard(3)}, {{11, 15}, {16, 8}});
}

TEST(UNetGrid, RowsOverBothMeshDims) {
  expect_same_training({{"a", 2}, {"b", 2}}, {Shard(2), Shard(2)}, {{9, 3, 8, 6}, {}});
}

TEST(UNetGrid, NothingIsGathered) {
  shard::run_ranks(4, [&](shard::World& world) {
    const auto mesh = world.mesh({{"rows", 2}, {"columns", 2}});
    UNet net = make_net();
    const Tensor x = shard::scatter_tensor(torch::randn({1, 3, 26, 24}, torch::kFloat64), 0, mesh,
                                           {Shard(2), Shard(3)});
    const shard::CommCounter counter;
    net->forward(x).square().mean().backward();
    EXPECT_EQ(counter.calls("all_to_all_v"), 0) << counter.table();
    EXPECT_EQ(counter.calls("broadcast"), 0) << counter.table();
    // The statistics of group norm, a few numbers a group, are all that every rank gets.
    EXPECT_LE(counter.bytes("all_gather_v"), 14 * 4 * 3 * 16) << counter.table();
  });
}

}  // namespace
}  // namespace global_field
