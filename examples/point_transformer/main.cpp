// SPDX-License-Identifier: Apache-2.0
// point_transformer: a point cloud that is cut over the ranks, unevenly; a transformer learns the
// curvature-like signal at every point of a bumpy sphere.
//   Run: build/bin/point_transformer --ranks 2
#include <shard/shard.h>

#include <cmath>

#include "point_transformer.h"

namespace {

struct Cloud {
  torch::Tensor points, features, target;
};

/// On a sphere whose radius oscillates; the target is the radius, which no point knows by itself.
Cloud bumpy_sphere(int64_t count) {
  const torch::Tensor direction = torch::nn::functional::normalize(torch::randn({count, 3}));
  const torch::Tensor radius = 1 + 0.3 * (5 * direction.select(1, 2)).sin();
  return {direction * radius.unsqueeze(1), torch::ones({count, 1}), radius.unsqueeze(1)};
}

}  // namespace

int main(int argc, char** argv) {
  return shard::launch(argc, argv, [](shard::World& world) {
    const shard::DeviceMesh domain = world.mesh();
    const int64_t count = 2000;
    const Cloud whole = bumpy_sphere(count);
    shard::Partition pieces = shard::even_partition(count, world.size());
    if (world.size() > 1) std::swap(pieces[0] += 77, pieces[1] -= 77);
    const auto cut = [&](const torch::Tensor& x) {
      return shard::scatter_tensor(x, 0, domain, {shard::Shard(0)}, pieces);
    };
    const Cloud cloud{cut(whole.points), cut(whole.features), cut(whole.target)};

    point_transformer::PointTransformer net(1, 1, 16, 8, 128);
    shard::broadcast_parameters(*net, domain);
    torch::optim::Adam adam(net->parameters(), 5e-3);
    for (int step = 0; step <= 40; ++step) {
      const torch::Tensor loss =
          torch::mse_loss(net->forward(cloud.points, cloud.features), cloud.target);
      adam.zero_grad();
      loss.backward();
      adam.step();
      const double value = loss.item<double>();
      if (world.is_root() && step % 10 == 0) std::printf("step %3d  loss %.6f\n", step, value);
    }
  });
}
