// SPDX-License-Identifier: Apache-2.0
// Exchanges that are started and waited for later, on thread ranks: values, overlap, and that all
// that holds for a call holds for the wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/memory.h>
#include <torch/types.h>

#include <chrono>
#include <thread>

#include "comm/transfer_lane.h"

namespace shard::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

struct Shift {
  at::Tensor sent, received;
  Pending<std::vector<at::Tensor>> pending;
};

/// Starts to send `value` to the next rank.
Shift shift(const Communicator& comm, double value, int64_t size = 4) {
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const at::Tensor sent = torch::full({size}, value);
  const at::Tensor received = torch::zeros({size});
  auto pending = comm.start_exchange({{next, sent}}, {{previous, received}});
  return {sent, received, std::move(pending)};
}

std::string error_of(int ranks, const RankFunction& body, LaunchOptions options = {}) {
  try {
    run_ranks(ranks, body, options);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(StartedExchanges, ArriveInTheirOrderApartFromOtherCalls) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](World& world) {
      const Communicator& comm = world.comm();
      const int previous = (comm.rank() + ranks - 1) % ranks;
      const CommCounter counter;
      Shift first = shift(comm, comm.rank());
      Shift second = shift(comm, 10 + comm.rank());
      at::Tensor sum = torch::ones({3});
      comm.all_reduce(sum);
      EXPECT_EQ(sum[0].item<int>(), ranks);
      EXPECT_EQ(first.pending.wait()[0][0].item<int>(), previous);
      EXPECT_EQ(second.pending.wait()[0][3].item<int>(), 10 + previous);
      EXPECT_EQ(counter.calls("exchange"), ranks > 1 ? 2 : 0);
      EXPECT_EQ(counter.bytes("exchange"), ranks > 1 ? 2 * 4 * int64_t{sizeof(float)} : 0);
      comm.barrier();
      EXPECT_EQ(comm.bytes_sent(), counter.bytes());
    });
  }
}

TEST(StartedExchanges, BumpTheVersionsOfWhatTheyWrite) {
  run_ranks(2, [](World& world) {
    Shift moved = shift(world.comm(), 1);
    const auto before = moved.received._version();
    moved.pending.wait();
    EXPECT_GT(moved.received._version(), before);
  });
}

TEST(StartedExchanges, MoveWhileTheRankWorks) {
  // What the helper takes is slept, so the machine's load does not matter.
  set_transfer_delay(100us / 4.0);
  run_ranks(2, [](World& world) {
    shift(world.comm(), 0).pending.wait();  // opens the lane
    world.comm().barrier();
    const auto begin = Clock::now();
    Shift moved = shift(world.comm(), 1, 2000);  // 8000 bytes: 0.2 s
    const auto started = Clock::now();
    std::this_thread::sleep_for(100ms);
    moved.pending.wait();
    const auto ended = Clock::now();
    EXPECT_LT(started - begin, (ended - begin) / 4);
    EXPECT_GE(ended - begin, 190ms);
    EXPECT_EQ(moved.received[1999].item<int>(), 1);
  });
  set_transfer_delay(0ns);
}

// The messages move all the same, since the peers wait for them, and the next exchange finds them
// moved: exchanges are matched in their order.
TEST(StartedExchanges, ThatAreDroppedLetGoOfTheirMemory) {
  run_ranks(3, [](World& world) {
    const Communicator& comm = world.comm();
    const auto move_and_sum = [&](double value) {
      Shift moved = shift(comm, value);
      EXPECT_EQ(moved.pending.wait()[0][3].item<double>(), value);
      at::Tensor sum = torch::ones({3});
      comm.all_reduce(sum);
      EXPECT_EQ(sum[0].item<int>(), 3);
    };
    move_and_sum(0);
    const int64_t live = MemoryAccount::current().live();
    set_transfer_delay(1us);  // dropped long before they have moved
    for (int i = 0; i < 2; ++i) const Shift dropped = shift(comm, 7, 10'000);
    move_and_sum(1);
    EXPECT_EQ(MemoryAccount::current().live(), live);
  });
  set_transfer_delay(0ns);
}

TEST(StartedExchanges, ThatAreDroppedAtTheEndLeaveTheirRanksAlone) {
  for (int i = 0; i < 20; ++i) {
    run_ranks(2, [](World& world) { const Shift dropped = shift(world.comm(), 1, 10'000); });
  }
}

TEST(StartedExchanges, RaiseThePeersFailureInWait) {
  const std::string text = error_of(3, [](World& world) {
    Shift moved = shift(world.comm(), 1);
    moved.pending.wait();
    if (world.rank() == 1) throw std::runtime_error("boom");
    shift(world.comm(), 2).pending.wait();
  });
  EXPECT_THAT(text, HasSubstr("boom"));
}

TEST(StartedExchanges, RaiseWhenThePeerFailsWithoutWaiting) {
  std::vector<std::string> texts(2);
  const std::string text = error_of(2, [&](World& world) {
    try {  // the failure may already be known when rank 1 starts
      Shift moved = shift(world.comm(), 1);
      if (world.rank() == 0) throw std::runtime_error("boom");
      moved.pending.wait();
      shift(world.comm(), 2).pending.wait();
    } catch (const PeerFailed& error) {
      texts[1] = error.what();
      throw;
    }
  });
  EXPECT_THAT(text, HasSubstr("boom"));
  EXPECT_THAT(texts[1], HasSubstr("rank 0 failed: boom"));
}

TEST(StartedExchanges, CheckSizesAndDtypes) {
  const std::string text = error_of(
      2, [](World& world) { shift(world.comm(), 1, world.rank() == 0 ? 4 : 5).pending.wait(); });
  EXPECT_THAT(text, HasSubstr("exchange"));
  EXPECT_THAT(text, HasSubstr("[4]"));
  EXPECT_THAT(text, HasSubstr("[5]"));
}

TEST(StartedExchanges, TimeOutWithWhoIsMissing) {
  LaunchOptions options;
  options.timeout = 300ms;
  std::atomic<bool> is_over{false};
  const std::string text = error_of(
      2,
      [&](World& world) {
        shift(world.comm(), 0).pending.wait();
        if (world.rank() == 1) {
          while (!is_over) std::this_thread::sleep_for(1ms);
          return;
        }
        try {
          shift(world.comm(), 1).pending.wait();
        } catch (const CommTimeout&) {
          is_over = true;
          throw;
        }
        is_over = true;
      },
      options);
  EXPECT_THAT(text, HasSubstr("0.3 s"));
}

TEST(StartedExchanges, AreSeenInACircleOfWaits) {
  const auto begin = Clock::now();
  const std::string text = error_of(2, [](World& world) {
    shift(world.comm(), 0).pending.wait();
    if (world.rank() == 0) {
      shift(world.comm(), 1).pending.wait();
    } else {
      world.comm().barrier();
    }
  });
  EXPECT_LT(Clock::now() - begin, 60s);  // not the timeout of 300 s
  EXPECT_THAT(text, HasSubstr("rank 0 in exchange"));
  EXPECT_THAT(text, HasSubstr("rank 1 in barrier"));
}

TEST(StartedExchanges, ThatTakeLongAreNotTakenForACircle) {
  set_transfer_delay(100us / 4.0);
  run_ranks(2, [](World& world) {
    Shift moved = shift(world.comm(), 1, 8000);  // 0.8 s, longer than a wait is unsuspicious
    if (world.rank() == 0) {
      moved.pending.wait();
      world.comm().barrier();
    } else {
      world.comm().barrier();
      moved.pending.wait();
    }
    EXPECT_EQ(moved.received[0].item<int>(), 1);
  });
  set_transfer_delay(0ns);
}

}  // namespace
}  // namespace shard::testing
