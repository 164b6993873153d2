// SPDX-License-Identifier: Apache-2.0
// fno: a Fourier neural operator on the real global field (examples/global_field): from the
// atmospheric turbidity of three months, the altitude and the latitude it learns the next month.
// The rows of the globe are cut over the ranks, and every rank reads its own ones.
//   Run: build/bin/fno --ranks 2      (from the folder that holds data/)
#include <global_field/dataset.h>
#include <shard/shard.h>

#include "fno.h"

namespace {

/// The sample that predicts a month, cut along its rows.
global_field::Sample sharded_sample(const global_field::GlobalField& own, int64_t month,
                                    const shard::DeviceMesh& domain, const shard::Partition& rows) {
  const auto cut = [&](const torch::Tensor& local) {
    return shard::from_local(local, domain, {shard::Shard(2)}, rows);
  };
  const auto local = own.sample(month);
  return {cut(local.input), cut(local.target)};
}

}  // namespace

int main(int argc, char** argv) {
  return shard::launch(argc, argv, [](shard::World& world) {
    const shard::DeviceMesh domain = world.mesh();
    global_field::FieldOptions options;
    options.reduce = 20;  // 108 x 216 points
    const auto rows = shard::even_partition(global_field::GlobalField::rows(options), world.size());
    const int64_t begin = shard::offset_of(rows, world.rank());
    const int64_t end = shard::offset_of(rows, world.rank() + 1);
    const global_field::GlobalField own(options, {begin, end},
                                        {0, global_field::GlobalField::columns(options)});

    fno::Fno net(global_field::kInputChannels, 1, 12, 12, 12, 3);
    shard::broadcast_parameters(*net, domain);
    torch::optim::Adam adam(net->parameters(), 5e-3);
    for (int step = 0; step <= 45; ++step) {
      const int64_t month = global_field::kTrainingMonths[static_cast<size_t>(step % 9)];
      const auto sample = sharded_sample(own, month, domain, rows);
      const torch::Tensor loss = torch::mse_loss(net->forward(sample.input), sample.target);
      adam.zero_grad();
      loss.backward();
      adam.step();
      const double value = loss.item<double>();
      if (world.is_root() && step % 9 == 0) std::printf("step %3d  loss %.6f\n", step, value);
    }
  });
}
