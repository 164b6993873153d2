// SPDX-License-Identifier: Apache-2.0
// quickstart: the program of the README. A plain torch::nn model learns to blur a field that is cut
// over the ranks.   Run: build/bin/quickstart --ranks 2
#include <shard/shard.h>
#include <torch/torch.h>

int main(int argc, char** argv) {
  return shard::launch(argc, argv, [](shard::World& world) {
    shard::DeviceMesh domain = world.mesh();  // all ranks in a row
    torch::Tensor field = torch::randn({1, 1, 90, 180});
    torch::Tensor blurred = torch::avg_pool2d(field, 3, 1, 1);
    torch::Tensor x = shard::scatter_tensor(field, 0, domain, {shard::Shard(2)});
    torch::Tensor y = shard::scatter_tensor(blurred, 0, domain, {shard::Shard(2)});

    torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)),
                              torch::nn::GELU(),
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 1, 3).padding(1)));
    shard::broadcast_parameters(*net, domain);
    torch::optim::Adam adam(net->parameters(), 1e-2);
    for (int step = 0; step <= 100; ++step) {
      torch::Tensor loss =
          torch::mse_loss(net->forward(x), y);  // halo exchange happens inside conv2d
      adam.zero_grad();
      loss.backward();  // gradients of the weights are plain tensors, complete on every rank
      adam.step();
      const double value = loss.item<double>();  // the same number on every rank
      if (world.is_root() && step % 50 == 0) std::printf("step %3d  loss %.6f\n", step, value);
    }
    std::printf("rank %d holds %ld of %ld rows\n", world.rank(),
                long(shard::ShardTensor(x).local().size(2)), long(x.size(2)));
  });
}
