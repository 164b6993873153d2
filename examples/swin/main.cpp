// SPDX-License-Identifier: Apache-2.0
// swin: Swin transformer blocks learn to shift a pattern by a few rows, across the borders of
// windows and of ranks; the rows of the images are cut.
//   Run: build/bin/swin --ranks 2
#include <shard/shard.h>

#include "swin.h"

int main(int argc, char** argv) {
  return shard::launch(argc, argv, [](shard::World& world) {
    const shard::DeviceMesh domain = world.mesh();
    const torch::Tensor images = torch::randn({2, 2, 32, 32});
    const auto cut = [&](const torch::Tensor& t) {
      return shard::scatter_tensor(t, 0, domain, {shard::Shard(2)});
    };
    const torch::Tensor x = cut(images);
    const torch::Tensor y = cut(images.roll({2}, {2}));

    swin::Swin net(2, 2, 24, 3, 4, 1);
    shard::broadcast_parameters(*net, domain);
    torch::optim::Adam adam(net->parameters(), 3e-3);
    double first = 0, last = 0;
    for (int step = 0; step <= 40; ++step) {
      const torch::Tensor loss = torch::mse_loss(net->forward(x), y);
      adam.zero_grad();
      loss.backward();
      adam.step();
      const double value = loss.item<double>();
      if (step == 0) first = value;
      last = value;
      if (world.is_root() && step % 10 == 0) std::printf("step %3d  loss %.6f\n", step, value);
    }
    shard::check<shard::Error>(last < 0.9 * first, "swin", "got a loss of ", last, " after ", first,
                               "; expected less than 0.9 times it.");
  });
}
