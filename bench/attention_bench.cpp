// SPDX-License-Identifier: Apache-2.0
// scaled_dot_product_attention over a sequence cut over two thread ranks, against the plain op on
// the whole sequence with one and with two threads. Wall time of rank 0; while it measures the
// plain op, rank 1 sleeps in its next call.
#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <shard/attention.h>
#include <shard/shard.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <functional>
#include <string>
#include <vector>

#include "bench.h"

namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int kRanks = 2;

Tensor forward(const Tensors& qkv, bool is_causal) {
  return at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0, is_causal);
}

void step(const Tensors& qkv, bool is_causal) {
  const Tensor y = forward(qkv, is_causal);
  torch::autograd::grad({y}, qkv, {at::ones_like(y)});
}

struct Case {
  std::string name;
  std::vector<int64_t> sizes;
  bool is_causal = false;
  bool has_gradient = false;
  int threads = 1;   ///< of the plain op
  double limit = 1;  ///< of the plain op's time
  int blocks = 15;
  int calls = 1;
};

bool run(const Case& c) {
  bool ok = true;
  shard::run_ranks(kRanks, [&](shard::World& world) {
    Tensors whole;
    Tensors cut;
    for (int i = 0; i < 3; ++i) {
      whole.push_back(torch::randn(c.sizes));
      cut.push_back(shard::scatter_tensor(whole.back(), 0, world.mesh(), {shard::Shard(2)}));
      whole.back().set_requires_grad(c.has_gradient);
      cut.back().set_requires_grad(c.has_gradient);
    }
    const auto once = [&](const Tensors& qkv) {
      if (c.has_gradient) return step(qkv, c.is_causal);
      forward(qkv, c.is_causal);
    };
    const auto plain = [&] {
      if (!world.is_root()) return;
      at::set_num_threads(c.threads);
      once(whole);
      at::set_num_threads(1);
    };
    const auto pair = bench::measure([&] { once(cut); }, plain, c.blocks, c.calls, &bench::wall_us);
    if (!world.is_root()) return;
    const std::string reference =
        c.threads == 1 ? "plain whole, one thread" : "plain whole, two threads";
    ok = bench::report("attention", c.name, kRanks, pair, reference, pair.ref * c.limit);
  });
  return ok;
}

}  // namespace

int main() {
  const std::vector<int64_t> small{1, 4, 256, 32};
  const std::vector<int64_t> large{1, 4, 4096, 64};
  bool ok = run({.name = "sdpa 1x4x256x32 forward",
                 .sizes = small,
                 .limit = 0.75,
                 .blocks = 31,
                 .calls = 200});
  ok &= run({.name = "sdpa 1x4x4096x64 forward+backward",
             .sizes = large,
             .has_gradient = true,
             .limit = 1 / 1.85});
  ok &= run({.name = "sdpa 1x4x4096x64 forward+backward",
             .sizes = large,
             .has_gradient = true,
             .threads = 2});
  ok &= run({.name = "sdpa 1x4x4096x64 causal forward+backward",
             .sizes = large,
             .is_causal = true,
             .has_gradient = true,
             .limit = 1 / 1.7});
  return ok ? 0 : 1;
}
