// SPDX-License-Identifier: Apache-2.0
// A user's program, built outside the project against the installed package or as a subdirectory.
#include <ATen/ops/arange.h>
#include <ATen/ops/relu.h>
#include <shard/shard.h>

#include <iostream>

int main(int argc, char** argv) {
  shard::LaunchOptions options;
  options.ranks = 2;
  return shard::launch(
      argc, argv,
      [](shard::World& world) {
        const auto mesh = world.mesh();
        const at::Tensor whole = at::arange(-3, 4, at::kFloat).view({1, 7});
        const at::Tensor x = shard::scatter_tensor(whole, 0, mesh, {shard::Shard(1)});
        const auto total = shard::ShardTensor(at::relu(x)).full().sum().item<float>();
        if (total != 6.0F)
          throw shard::Error("[consumer] sum of relu: got another value; expected 6.");
        if (world.is_root())
          std::cout << "consumer: " << world.size() << " ranks, sum " << total << '\n';
      },
      options);
}
