// SPDX-License-Identifier: Apache-2.0
// A thousand jobs in each of which one rank does something wrong at a random place of a training
// loop: nobody hangs, the process lives on, and the error names the culprit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/handlers.h>
#include <shard/shard.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>
#include <chrono>
#include <mutex>
#include <thread>

#include "support/random.h"

namespace shard::testing {
namespace {

using at::Tensor;

enum class Fault : uint8_t {
  ThrowInAnOp,
  ThrowBetweenOps,
  ThrowInBackward,
  ThrowInAHook,
  ThrowInAPatch,
  ReturnEarly,
  ComeLate,
  AnotherCollective,
  AnotherSize,
  AnotherDtype,
  AnotherOrder,
};
constexpr int kFaults = 11;
constexpr int kSteps = 3;

struct Job {
  Fault fault = Fault::ThrowInAnOp;
  int ranks = 2;
  int culprit = 0;
  int step = 0;
  std::string text() const {
    return c10::str("fault ", static_cast<int>(fault), ", rank ", culprit, " of ", ranks, ", step ",
                    step);
  }
};

Job random_job(uint64_t seed) {
  Random r(seed);
  Job job;
  job.fault = static_cast<Fault>(r.integer(0, kFaults - 1));
  job.ranks = static_cast<int>(r.integer(2, 4));
  job.culprit = static_cast<int>(r.integer(0, job.ranks - 1));
  job.step = static_cast<int>(r.integer(0, kSteps - 1));
  return job;
}

struct Planted : std::runtime_error {
  explicit Planted(int rank) : std::runtime_error(c10::str("planted on rank ", rank)) {}
};

/// Identity whose backward throws.
struct ThrowInBackward : torch::autograd::Function<ThrowInBackward> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, int64_t rank) {
    context->saved_data["rank"] = rank;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list&) {
    throw Planted(static_cast<int>(context->saved_data["rank"].toInt()));
  }
};

/// What only the culprit does, at its step, before the loss.
void misbehave(const Job& job, World& world, Tensor& y, HandlerRegistration& handler) {
  Tensor tensor = torch::ones({6});
  switch (job.fault) {
    case Fault::ThrowInAnOp:
      (void)y.view({-1, 7919});
      break;
    case Fault::ThrowBetweenOps:
      throw Planted(world.rank());
    case Fault::ThrowInBackward:
      y = from_local(ThrowInBackward::apply(to_local(y), world.rank()), mesh_of(y), spec_of(y));
      break;
    case Fault::ThrowInAHook:
      y.register_hook([rank = world.rank()](const Tensor&) -> Tensor { throw Planted(rank); });
      break;
    case Fault::ThrowInAPatch:
      handler = register_function_handler<at::_ops::tanh>(
          +[](const Tensor& x) -> Tensor { throw Planted(static_cast<int>(mesh_of(x).rank())); });
      break;
    case Fault::ComeLate:
      std::this_thread::sleep_for(std::chrono::milliseconds(15));
      break;
    case Fault::AnotherCollective:
      world.comm().broadcast(tensor, 0);
      break;
    case Fault::AnotherSize:
      tensor = torch::ones({7});
      world.comm().all_reduce(tensor);
      break;
    case Fault::AnotherDtype:
      tensor = torch::ones({6}, at::kDouble);
      world.comm().all_reduce(tensor);
      break;
    case Fault::AnotherOrder:
      world.comm().barrier();
      world.comm().all_reduce(tensor);
      break;
    case Fault::ReturnEarly:
      break;
  }
}

/// What the others do meanwhile.
void behave(World& world) {
  Tensor tensor = torch::ones({6});
  world.comm().all_reduce(tensor);
  world.comm().barrier();
}

bool is_about_collectives(Fault fault) { return fault >= Fault::AnotherCollective; }

void train(const Job& job, World& world) {
  const auto mesh = world.mesh();
  const Tensor x = scatter_tensor(torch::ones({1, 2, 9, 4}), 0, mesh, {Shard(2)});
  Tensor w = torch::full({2, 2, 3, 3}, 0.1).requires_grad_();
  HandlerRegistration handler;
  for (int step = 0; step < kSteps; ++step) {
    const bool is_now = step == job.step;
    const bool is_mine = is_now && world.rank() == job.culprit;
    if (is_mine && job.fault == Fault::ReturnEarly) return;
    Tensor y = at::group_norm(at::conv2d(x, w, {}, 1, 1), 2);
    if (is_mine) misbehave(job, world, y, handler);
    if (is_now && !is_mine && is_about_collectives(job.fault)) behave(world);
    const Tensor loss = at::mse_loss(y.tanh(), x);
    w.mutable_grad().reset();
    loss.backward();
    const torch::NoGradGuard no_graph;
    w.sub_(w.grad() * 0.1);
  }
  world.comm().barrier();
}

/// The error of the job; "" when it ended well. `peers` gets those of the other ranks.
std::string error_of(const Job& job, std::vector<std::string>& peers) {
  std::mutex mutex;
  LaunchOptions options;
  options.timeout = std::chrono::seconds(20);
  try {
    run_ranks(
        job.ranks,
        [&](World& world) {
          try {
            train(job, world);
          } catch (const std::exception& error) {
            const std::lock_guard lock(mutex);
            if (world.rank() != job.culprit) peers.emplace_back(error.what());
            throw;
          }
        },
        options);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(RandomFaults, AThousandRunsHangNobodyAndNameTheCulprit) {
  std::array<int, kFaults> seen{};
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Job job = random_job(seed);
    ++seen[static_cast<size_t>(job.fault)];
    std::vector<std::string> peers;
    const auto begin = std::chrono::steady_clock::now();
    const std::string error = error_of(job, peers);
    const auto seconds = std::chrono::steady_clock::now() - begin;
    ASSERT_LT(seconds, std::chrono::seconds(10)) << "seed " << seed << ": " << job.text();
    if (job.fault == Fault::ComeLate) {
      ASSERT_EQ(error, "") << "seed " << seed << ": " << job.text();
      continue;
    }
    const std::string culprit = std::to_string(job.culprit);
    const auto names_it = ::testing::ContainsRegex("ranks? ([0-9], )*" + culprit);
    if (job.fault == Fault::ThrowInAnOp) {  // the rank's own error, LibTorch's
      ASSERT_THAT(error, ::testing::HasSubstr("7919")) << "seed " << seed << ": " << job.text();
    } else {
      ASSERT_THAT(error, names_it) << "seed " << seed << ": " << job.text();
    }
    ASSERT_EQ(peers.size(), static_cast<size_t>(job.ranks - 1))
        << "seed " << seed << ": " << job.text();
    for (const auto& peer : peers) {
      ASSERT_THAT(peer, names_it) << "seed " << seed << ": " << job.text();
    }
  }
  for (const int count : seen) EXPECT_GT(count, 50);
}

}  // namespace
}  // namespace shard::testing
