// SPDX-License-Identifier: Apache-2.0
// Ops that communicate, on two thread ranks, against the same op on a plain tensor of the local
// size in the same run; and the size-bound convolution against the ideal of independent threads.
// Wall time of rank 0.
#include <shard/shard.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <barrier>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "bench.h"

namespace {

using at::Tensor;

/// Runs `body` on two ranks; both return the same booleans.
template <class Body>
bool on_two_ranks(const Body& body) {
  bool ok = true;
  shard::run_ranks(2, [&](shard::World& world) {
    const bool mine = body(world);
    if (world.is_root()) ok = mine;
  });
  return ok;
}

bool report_root(const shard::World& world, const std::string& name, const bench::Pair& pair,
                 const std::string& reference, double limit) {
  return !world.is_root() || bench::report("exchange", name, world.size(), pair, reference, limit);
}

/// Two references: the plain op on a tensor of the local size; and the same followed by nothing but
/// the communication that the sharded op cannot do without, which is what meeting each other at
/// every call costs on this machine.
template <class Sharded, class Plain, class Communicate>
bool against_plain(shard::World& world, const std::string& name, double allowed,
                   const Sharded& sharded, const Plain& plain, const Communicate& communicate) {
  const auto alone = bench::measure(sharded, plain, 31, 200, &bench::wall_us);
  const auto together = bench::measure(
      sharded,
      [&] {
        plain();
        communicate();
      },
      31, 200, &bench::wall_us);
  bool ok = report_root(world, name, alone, "plain on the local size", alone.ref + allowed);
  ok &= report_root(world, name, together, "plain on the local size and the bare communication",
                    together.ref + allowed);
  return ok;
}

bool small_convolution() {
  return on_two_ranks([](shard::World& world) {
    const at::NoGradGuard guard;
    const auto mesh = world.mesh();
    const auto plain = torch::randn({1, 8, 32, 64});
    const auto x = shard::scatter_tensor(torch::randn({1, 8, 64, 64}), 0, mesh, {shard::Shard(2)});
    const auto w = torch::randn({8, 8, 3, 3});
    const auto b = torch::randn({8});
    const auto row = torch::zeros({1, 8, 1, 64});
    const auto received = torch::zeros({1, 8, 1, 64});
    const int other = 1 - world.rank();
    return against_plain(
        world, "conv2d 1x8x64x64 k3 forward", 30, [&] { at::conv2d(x, w, b, 1, 1); },
        [&] { at::conv2d(plain, w, b, 1, 1); },
        [&] {
          mesh.comm().exchange({{other, row}}, {{other, received}});
        });
  });
}

bool small_linear() {
  return on_two_ranks([](shard::World& world) {
    const auto mesh = world.mesh();
    const auto plain = torch::randn({1, 128, 64}).requires_grad_();
    auto x = shard::scatter_tensor(torch::randn({1, 256, 64}), 0, mesh, {shard::Shard(1)})
                 .requires_grad_();
    auto w = torch::randn({64, 64}).requires_grad_();
    auto b = torch::randn({64}).requires_grad_();
    auto gradients = torch::zeros({64 * 64 + 64});
    const auto step = [&](const Tensor& input) {
      const auto y = at::linear(input, w, b);
      torch::autograd::grad({y}, {input, w, b}, {torch::ones_like(y)});
    };
    return against_plain(
        world, "linear 1x256x64 forward+backward", 40, [&] { step(x); }, [&] { step(plain); },
        [&] { mesh.comm().all_reduce(gradients); });
  });
}

bool redistribution() {
  return on_two_ranks([](shard::World& world) {
    const at::NoGradGuard guard;
    const auto x =
        shard::scatter_tensor(torch::randn({1, 8, 64, 64}), 0, world.mesh(), {shard::Shard(2)});
    const auto local = torch::randn({1, 8, 64, 64});
    const auto gather = [&] { shard::ShardTensor(x).redistribute({shard::Replicate()}); };
    const auto first = bench::measure(
        gather, [&] { local.clone(); }, 31, 100, &bench::wall_us);
    for (int i = 0; i < 10'000; ++i) gather();
    const auto later = bench::measure(
        gather, [&] { local.clone(); }, 31, 100, &bench::wall_us);
    bool ok = report_root(world, "redistribute 128 KB", first, "clone", 60);
    ok &= report_root(world, "redistribute 128 KB after 10^4 calls", {later.us, first.us},
                      "the first calls", 1.25 * first.us + 2);
    return ok;
  });
}

// ---- size-bound

struct Conv {
  Tensor x, w, b;
  explicit Conv(int64_t rows)
      : x(torch::randn({1, 16, rows, 1024}).requires_grad_()),
        w(torch::randn({16, 16, 3, 3}).requires_grad_()),
        b(torch::randn({16}).requires_grad_()) {}
  void step(const Tensor& input) const {
    const auto y = at::conv2d(input, w, b, 1, 1);
    torch::autograd::grad({y}, {input, w, b}, {torch::ones_like(y)});
  }
};

/// Milliseconds of the second call on this thread: the first one makes plans and fetches memory.
double second_ms(
    const std::function<void()>& step, const std::function<void()>& meet = [] {}) {
  step();
  meet();
  const double begin = bench::wall_us();
  step();
  meet();
  return (bench::wall_us() - begin) / 1e3;
}

void one_intra_op_thread() {
  at::get_num_threads();
  at::set_num_threads(1);
}

/// Two independent plain threads, each on half the rows.
double ideal_ms() {
  const Conv conv(512);
  std::barrier<> both(2);
  double ms = 0;
  const auto work = [&](bool counts) {
    one_intra_op_thread();
    const double mine = second_ms([&] { conv.step(conv.x); }, [&] { both.arrive_and_wait(); });
    if (counts) ms = mine;
  };
  std::thread other(work, false);
  std::thread self(work, true);
  other.join();
  self.join();
  return ms;
}

double sharded_ms() {
  double ms = 0;
  shard::run_ranks(2, [&](shard::World& world) {
    const Conv conv(8);
    auto x = shard::from_local(torch::randn({1, 16, 512, 1024}), world.mesh(), {shard::Shard(2)})
                 .requires_grad_();
    const double mine = second_ms([&] { conv.step(x); }, [&] { world.comm().barrier(); });
    if (world.is_root()) ms = mine;
  });
  return ms;
}

double one_thread_ms() {
  one_intra_op_thread();
  const Conv conv(1024);
  return second_ms([&] { conv.step(conv.x); });
}

/// One plain thread in a process that leaves the allocator as the C library sets it up.
double as_it_comes_ms() {
  const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  const auto command = "SHARD_CPU_MEMORY=system '" + self + "' --one-thread";
  std::FILE* child = popen(command.c_str(), "r");
  double ms = 0;
  if (!child || std::fscanf(child, "%lf", &ms) != 1) ms = 0;
  if (child) pclose(child);
  return ms;
}

bool large_convolution() {
  std::vector<double> sharded;
  std::vector<double> ideal;
  std::vector<double> single;
  std::vector<double> untouched;
  for (int i = 0; i < 15; ++i) {
    sharded.push_back(sharded_ms());
    ideal.push_back(ideal_ms());
    single.push_back(one_thread_ms());
    if (i % 3 == 0) untouched.push_back(as_it_comes_ms());
  }
  const std::string name = "conv2d 1x16x1024x1024 k3 forward+backward";
  const double us = bench::median(sharded) * 1e3;
  const double two = bench::median(ideal) * 1e3;
  const double one = bench::median(single) * 1e3;
  bool ok =
      bench::report("size-bound", name, 2, {us, two}, "two independent plain threads", two / 0.95);
  ok &= bench::report("size-bound", name, 2, {us, one}, "one plain thread, same memory policy",
                      one / 1.8);
  const double plain = bench::median(untouched) * 1e3;
  ok &=
      bench::report("size-bound", name, 2, {us, plain}, "one plain thread as it comes", plain / 4);
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--one-thread") {
    std::printf("%f\n", one_thread_ms());
    return 0;
  }
  bool ok = small_convolution();
  ok &= small_linear();
  ok &= redistribution();
  ok &= large_convolution();
  return ok ? 0 : 1;
}
