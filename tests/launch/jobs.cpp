// SPDX-License-Identifier: Apache-2.0
// Programs that job_test.cpp starts, as processes of their own: each ends with the exit code of
// launch. They are disabled tests of this executable, so that they need no executable of their own.
#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "support/device.h"

namespace shard::testing {
namespace {

/// Runs `body` on the ranks that the environment asks for, telling what each rank raised, and
/// exits.
[[noreturn]] void run_job(const RankFunction& body) {
  const char* program = "job";
  LaunchOptions options;
  options.device = device_under_test();
  const auto on_rank = [&](World& world) {
    try {
      body(world);
    } catch (const PeerFailed&) {
      std::cerr << "<rank " + std::to_string(world.rank()) + " raised PeerFailed>\n";
      throw;
    } catch (const CommMismatch&) {
      std::cerr << "<rank " + std::to_string(world.rank()) + " raised CommMismatch>\n";
      throw;
    } catch (const CommTimeout&) {
      std::cerr << "<rank " + std::to_string(world.rank()) + " raised CommTimeout>\n";
      throw;
    }
  };
  const int code = launch(1, const_cast<char**>(&program), on_rank, options);
  std::cerr << "<launch returned " + std::to_string(code) + ">\n";
  std::exit(code);
}

torch::Tensor ones(const World& world, int64_t count) {
  return torch::ones({count}, world.device());
}

void reduce(World& world, int64_t count) {
  torch::Tensor tensor = ones(world, count);
  world.comm().all_reduce(tensor);
}

TEST(Job, DISABLED_Succeeds) {
  run_job([](World& world) {
    reduce(world, 100000);
    std::cerr << "<rank " + std::to_string(world.rank()) + " of " + std::to_string(world.size()) +
                     " by " + world.comm().backend_name() + ">\n";
  });
}

TEST(Job, DISABLED_OneRankThrows) {
  run_job([](World& world) {
    reduce(world, 3);
    if (world.rank() == 1) throw std::runtime_error("boom");
    reduce(world, 100000);
  });
}

TEST(Job, DISABLED_AllRanksThrow) {
  run_job([](World& world) { world.mesh({{"domain", 77}}); });
}

TEST(Job, DISABLED_OneRankReturns) {
  run_job([](World& world) {
    if (world.rank() == 1) return;
    world.comm().barrier();
  });
}

TEST(Job, DISABLED_SizesDiffer) {
  run_job([](World& world) { reduce(world, world.rank() == 1 ? 30000 : 40000); });
}

TEST(Job, DISABLED_RootsDiffer) {
  run_job([](World& world) {
    torch::Tensor tensor = ones(world, 5);
    world.comm().broadcast(tensor, world.rank() == 1 ? 1 : 0);
    world.comm().barrier();
  });
}

TEST(Job, DISABLED_KindsDiffer) {
  run_job([](World& world) {
    torch::Tensor tensor = ones(world, 5);
    if (world.rank() == 1) {
      world.comm().exchange({}, {{0, tensor}});
    } else {
      world.comm().barrier();
    }
  });
}

TEST(Job, DISABLED_OneRankDoesNotCome) {
  run_job([](World& world) {
    if (world.rank() == 1) pause();
    world.comm().barrier();
  });
}

TEST(Job, DISABLED_OneRankDies) {
  run_job([](World& world) {
    if (world.rank() == 1) std::raise(SIGKILL);
    world.comm().barrier();
  });
}

/// Two pairs; what rank 1 does instead of meeting rank 0 for the first time.
template <class Instead>
[[noreturn]] void run_pairs(const Instead& instead) {
  run_job([&](World& world) {
    const Communicator pair = world.comm().split(world.rank() / 2, 0, "pair");
    if (world.rank() == 1) instead();
    torch::Tensor tensor = ones(world, 100000);
    pair.all_reduce(tensor);
    world.comm().barrier();
  });
}

TEST(Job, DISABLED_OneRankExitsBeforeItsPairMeets) {
  run_pairs([] { std::_Exit(0); });
}

TEST(Job, DISABLED_OneRankThrowsBeforeItsPairMeets) {
  run_pairs([] { throw std::runtime_error("boom"); });
}

/// Asks for the report itself, as `kill -USR1` would.
TEST(Job, DISABLED_IsAskedForItsLastCalls) {
  run_job([](World& world) {
    reduce(world, 3);
    world.comm().barrier();
    if (world.is_root()) {
      ::kill(::getpid(), SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    world.comm().barrier();
  });
}

TEST(Job, DISABLED_RanksEndAtTheirOwnTime) {
  run_job([](World& world) {
    const Communicator pair = world.comm().split(world.rank() / 2, 0, "pair");
    if (world.rank() >= 2) return;
    torch::Tensor tensor = ones(world, 100000);
    for (int i = 0; i < 20; ++i) pair.all_reduce(tensor);
  });
}

}  // namespace
}  // namespace shard::testing
