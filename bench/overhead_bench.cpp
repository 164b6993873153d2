// SPDX-License-Identifier: Apache-2.0
// What a ShardTensor op costs over the plain op on a tensor of the same size: thread CPU time on
// one rank, x 1x8x64x64 Shard(2). "with grad" is the forward with inputs that require grad, graph
// dropped.
#include <shard/shard.h>
#include <torch/types.h>

#include "bench.h"

namespace {

using at::Tensor;

struct Case {
  std::string name;
  std::function<Tensor(const Tensor&)> op;
  double allowed;       // us over plain without grad
  double allowed_grad;  // and with
};

bool run(const Case& c, const Tensor& sharded, const Tensor& plain, bool grad) {
  Tensor s = sharded.detach().requires_grad_(grad);
  Tensor p = plain.detach().requires_grad_(grad);
  const auto pair = bench::measure([&] { c.op(s); }, [&] { c.op(p); });
  return bench::report("overhead", c.name + (grad ? " with grad" : ""), 1, pair, "plain LibTorch",
                       pair.ref + (grad ? c.allowed_grad : c.allowed));
}

std::vector<Case> cases() {
  const auto weight = torch::ones({64});
  const auto bias = torch::zeros({64});
  return {{"relu", [](const Tensor& x) { return at::relu(x); }, 0.6, 1.2},
          {"add", [](const Tensor& x) { return x + x; }, 0.6, 1.2},
          {"mul", [](const Tensor& x) { return x * x; }, 0.6, 1.2},
          {"view",
           [](const Tensor& x) {
             return x.view({1, 8, -1});
           },
           1.5, 1.5},
          {"reshape",
           [](const Tensor& x) {
             return x.reshape({1, 8, -1});
           },
           1.5, 1.5},
          {"permute",
           [](const Tensor& x) {
             return x.permute({0, 2, 3, 1});
           },
           1.5, 1.5},
          {"slice", [](const Tensor& x) { return x.slice(1, 0, 4); }, 1.5, 1.5},
          {"cat",
           [](const Tensor& x) {
             return at::cat({x, x}, 1);
           },
           1.5, 1.5},
          {"layer_norm", [=](const Tensor& x) { return torch::layer_norm(x, {64}, weight, bias); },
           3.0, 3.0}};
}

}  // namespace

int main(int argc, char** argv) {
  bool ok = true;
  shard::LaunchOptions options;
  options.ranks = 1;
  const int code = shard::launch(
      argc, argv,
      [&](shard::World& world) {
        const auto plain = torch::randn({1, 8, 64, 64});
        const auto sharded = shard::scatter_tensor(plain, 0, world.mesh(), {shard::Shard(2)});
        for (const auto& c : cases()) {
          ok &= run(c, sharded, plain, false);
          ok &= run(c, sharded, plain, true);
        }
      },
      options);
  return code != 0 ? code : (ok ? 0 : 1);
}
