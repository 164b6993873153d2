// SPDX-License-Identifier: Apache-2.0
// Fourier transforms on two thread ranks against one rank. Wall time of rank 0.
#include <ATen/ops/fft_fft2.h>
#include <shard/shard.h>
#include <torch/types.h>

#include "bench.h"

namespace {

/// One transform of a 1x8x1024x1024 complex field cut along its rows; after a first one, which
/// makes plans and fetches memory.
double fft2_us(int ranks) {
  double us = 0;
  shard::run_ranks(ranks, [&](shard::World& world) {
    const at::NoGradGuard guard;
    const at::Tensor local = torch::randn({1, 8, 1024 / ranks, 1024}, at::kComplexFloat);
    const at::Tensor x = shard::from_local(local, world.mesh(), {shard::Shard(2)});
    for (int call = 0; call < 2; ++call) {
      world.comm().barrier();
      const double begin = bench::wall_us();
      const at::Tensor y = at::fft_fft2(x);
      world.comm().barrier();
      if (world.is_root()) us = bench::wall_us() - begin;
    }
  });
  return us;
}

}  // namespace

int main() {
  std::vector<double> one;
  std::vector<double> two;
  for (int i = 0; i < 15; ++i) {
    two.push_back(fft2_us(2));
    one.push_back(fft2_us(1));
  }
  const bench::Pair pair{bench::median(two), bench::median(one)};
  return bench::report("spectra", "fft2 1x8x1024x1024", 2, pair, "one rank", pair.ref / 1.5) ? 0
                                                                                             : 1;
}
