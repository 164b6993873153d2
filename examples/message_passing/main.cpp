// SPDX-License-Identifier: Apache-2.0
// message_passing: a graph whose nodes and whose edges are cut over the ranks; a network learns one
// step of heat flow on it. Edges connect the points within a radius, which the ranks find together.
//   Run: build/bin/message_passing --ranks 2
#include <shard/points.h>
#include <shard/shard.h>

#include "message_passing.h"

int main(int argc, char** argv) {
  return shard::launch(argc, argv, [](shard::World& world) {
    const shard::DeviceMesh domain = world.mesh();
    const torch::Tensor all_points = torch::rand({1500, 2});
    const torch::Tensor points = shard::scatter_tensor(all_points, 0, domain, {shard::Shard(0)});

    // The edges that end at a rank's nodes are that rank's.
    const auto [pairs, lengths] = shard::radius_pairs(points, points, 0.05);
    const message_passing::Edges ends{pairs.select(0, 1), pairs.select(0, 0)};
    const torch::Tensor heat = (9 * points.select(1, 0)).sin().unsqueeze(1);
    const torch::Tensor flow = heat.index_select(0, ends.from) - heat.index_select(0, ends.to);
    const torch::Tensor target = torch::zeros_like(heat).index_add(0, ends.to, 0.1 * flow);

    message_passing::MessagePassing net(1, 1, 1, 16, 2);
    shard::broadcast_parameters(*net, domain);
    torch::optim::Adam adam(net->parameters(), 5e-3);
    for (int step = 0; step <= 60; ++step) {
      const torch::Tensor loss =
          torch::mse_loss(net->forward(heat, lengths.unsqueeze(1), ends), target);
      adam.zero_grad();
      loss.backward();
      adam.step();
      const double value = loss.item<double>();
      if (world.is_root() && step % 15 == 0) std::printf("step %3d  loss %.6f\n", step, value);
    }
    std::printf("rank %d holds %ld of %ld edges\n", world.rank(),
                long(shard::ShardTensor(lengths).local().size(0)), long(lengths.size(0)));
  });
}
