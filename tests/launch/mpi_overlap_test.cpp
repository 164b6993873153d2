// SPDX-License-Identifier: Apache-2.0
// Exchanges that are started and waited for later, and ring attention on them, with processes as
// ranks.
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>
#include <shard/attention.h>
#include <shard/comm_counter.h>
#include <shard/memory.h>
#include <shard/shard.h>
#include <torch/autograd.h>

#include <chrono>
#include <thread>

#include "comm/transfer_lane.h"
#include "mpi_world.h"

namespace shard::testing {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using Clock = std::chrono::steady_clock;

Pending<std::vector<Tensor>> shift(const Communicator& comm, double value, int64_t size,
                                   const Tensor& received) {
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  return comm.start_exchange({{next, torch::full({size}, value)}}, {{previous, received}});
}

TEST(StartedExchangesOnMpiRanks, ArriveInTheirOrderApartFromOtherCalls) {
  const Communicator& comm = mpi_world();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  for (const int64_t size : {3, 100'000}) {  // within a header's message, and after it
    const Tensor first = torch::zeros({size});
    const Tensor second = torch::zeros({size});
    auto pending_first = shift(comm, comm.rank(), size, first);
    auto pending_second = shift(comm, 10 + comm.rank(), size, second);
    Tensor sum = torch::ones({50'000});
    comm.all_reduce(sum);
    comm.barrier();
    EXPECT_EQ(sum[0].item<int>(), comm.size());
    EXPECT_EQ(pending_first.wait()[0][size - 1].item<int>(), previous);
    EXPECT_EQ(pending_second.wait()[0][0].item<int>(), 10 + previous);
  }
}

TEST(StartedExchangesOnMpiRanks, MoveWhileTheRankWorks) {
  const Communicator& comm = mpi_world();
  const Tensor received = torch::zeros({2000});
  shift(comm, 0, 2000, received).wait();  // opens the lane
  set_transfer_delay(100us / 4.0);
  comm.barrier();
  const auto begin = Clock::now();
  auto pending = shift(comm, 1, 2000, received);  // 8000 bytes: 0.2 s
  const auto started = Clock::now();
  std::this_thread::sleep_for(100ms);
  pending.wait();
  const auto ended = Clock::now();
  set_transfer_delay(0ns);
  EXPECT_LT(started - begin, (ended - begin) / 4);
  EXPECT_GE(ended - begin, 190ms);
  EXPECT_EQ(received[1999].item<int>(), 1);
}

TEST(StartedExchangesOnMpiRanks, ThatAreDroppedLetGoOfTheirMemory) {
  const Communicator& comm = mpi_world();
  const auto move_and_sum = [&](double value) {
    const Tensor received = torch::zeros({3});
    shift(comm, value, 3, received).wait();
    EXPECT_EQ(received[2].item<double>(), value);
    Tensor sum = torch::ones({3});
    comm.all_reduce(sum);
    EXPECT_EQ(sum[0].item<int>(), comm.size());
  };
  move_and_sum(0);
  const int64_t live = MemoryAccount::current().live();
  set_transfer_delay(1us);  // dropped long before they have moved
  for (int i = 0; i < 2; ++i) const auto dropped = shift(comm, 7, 10'000, torch::zeros({10'000}));
  move_and_sum(1);
  EXPECT_EQ(MemoryAccount::current().live(), live);
  set_transfer_delay(0ns);
}

TEST(AttentionOnMpiRanks, EqualsPlainLibTorchInEveryForm) {
  World& world = mpi_job();
  for (const bool is_causal : {false, true}) {
    for (const auto form : {AttentionForm::Ring, AttentionForm::Balanced, AttentionForm::Heads}) {
      manual_seed(5);
      const AttentionFormGuard guard(form);
      std::vector<Tensor> whole, cut;
      for (int i = 0; i < 3; ++i) {
        whole.push_back(torch::randn({2, 4, 13, 8}, at::dtype(at::kDouble).device(world.device())));
        cut.push_back(scatter_tensor(whole.back(), 0, world.mesh(), {Shard(2)}));
        whole.back().set_requires_grad(true);
        cut.back().set_requires_grad(true);
      }
      const auto run = [&](const std::vector<Tensor>& qkv) {
        const Tensor y = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0, is_causal);
        auto results = torch::autograd::grad({y}, qkv, {at::ones_like(y)});
        results.push_back(y.detach());
        return results;
      };
      const auto want = run(whole);
      const auto got = run(cut);
      for (size_t i = 0; i < want.size(); ++i) {
        const double error = (ShardTensor(got[i]).full() - want[i]).abs().max().item<double>();
        EXPECT_LE(error, 1e-11) << i;
      }
    }
  }
}

}  // namespace
}  // namespace shard::testing
