// SPDX-License-Identifier: Apache-2.0
// vit: a vision transformer learns to tell the orientation of stripes in images whose rows are cut
// over the ranks. The tokens of an image are cut with it; attention goes around the ranks.
//   Run: build/bin/vit --ranks 2
#include <shard/shard.h>

#include "vit.h"

namespace {

/// Stripes along rows (class 0) or columns (1), with noise: (B, 1, 64, 64).
torch::Tensor stripes(const torch::Tensor& classes) {
  const torch::Tensor wave = (torch::arange(64) * 0.7).sin();
  const torch::Tensor along =
      torch::stack({wave.unsqueeze(1).expand({64, 64}), wave.unsqueeze(0).expand({64, 64})});
  const torch::Tensor images = along.index_select(0, classes).unsqueeze(1);
  return images + torch::randn_like(images);
}

}  // namespace

int main(int argc, char** argv) {
  return shard::launch(argc, argv, [](shard::World& world) {
    const shard::DeviceMesh domain = world.mesh();
    vit::Options options;
    options.in = 1;
    options.out = 2;
    vit::Vit net(options);
    shard::broadcast_parameters(*net, domain);
    torch::optim::Adam adam(net->parameters(), 1e-3);
    for (int step = 0; step <= 30; ++step) {
      const torch::Tensor classes = torch::randint(0, 2, {16}, torch::kLong);
      const torch::Tensor images =
          shard::scatter_tensor(stripes(classes), 0, domain, {shard::Shard(2)});
      const torch::Tensor loss =
          torch::nn::functional::cross_entropy(net->forward(images), classes);
      adam.zero_grad();
      loss.backward();
      adam.step();
      const double value = loss.item<double>();
      if (world.is_root() && step % 10 == 0) std::printf("step %3d  loss %.6f\n", step, value);
    }
  });
}
