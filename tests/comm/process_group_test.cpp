// SPDX-License-Identifier: Apache-2.0
// Communicators over a c10d::ProcessGroup. The group here moves messages between the threads of
// this process, by send and recv alone, and knows as little of sharding as any other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/process_group.h>
#include <shard/tensor.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "support/collective_cases.h"

namespace shard::testing {
namespace {

using namespace std::chrono_literals;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

/// What was sent and not received yet.
struct PostOffice {
  using Box = std::tuple<int, int, int>;  // from, to, tag
  std::mutex mutex;
  std::condition_variable changed;
  std::map<Box, std::deque<torch::Tensor>> boxes;
  bool is_closed = false;
};

class Delivery final : public c10d::Work {
 public:
  Delivery(PostOffice& office, PostOffice::Box box, torch::Tensor to)
      : office_(office), box_(std::move(box)), to_(std::move(to)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(office_.mutex);
    auto& waiting = office_.boxes[box_];
    const bool has_come = office_.changed.wait_for(
        lock, timeout, [&] { return !waiting.empty() || office_.is_closed; });
    if (!has_come) throw std::runtime_error("nothing has come");
    if (waiting.empty()) throw std::runtime_error("connection closed");
    if (waiting.front().numel() != to_.numel()) throw std::runtime_error("wrong size");
    to_.copy_(waiting.front());
    waiting.pop_front();
    return true;
  }

 private:
  PostOffice& office_;
  PostOffice::Box box_;
  torch::Tensor to_;
};

class Sent final : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

class PostBackend final : public c10d::Backend {
 public:
  PostBackend(PostOffice& office, int rank, int size) : Backend(rank, size), office_(office) {}
  const std::string getBackendName() const override { return "post"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<torch::Tensor>& tensors, int to,
                                      int tag) override {
    {
      const std::lock_guard lock(office_.mutex);
      office_.boxes[{getRank(), to, tag}].push_back(tensors[0].clone());
    }
    office_.changed.notify_all();
    return c10::make_intrusive<Sent>();
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<torch::Tensor>& tensors, int from,
                                      int tag) override {
    return c10::make_intrusive<Delivery>(office_, PostOffice::Box{from, getRank(), tag},
                                         tensors[0]);
  }
  void abort() override {
    {
      const std::lock_guard lock(office_.mutex);
      office_.is_closed = true;
    }
    office_.changed.notify_all();
  }

 private:
  PostOffice& office_;
};

/// Runs `body` on ranks whose communicator comes from a process group.
void on_groups(int ranks, std::chrono::milliseconds timeout,
               const std::function<void(const Communicator&)>& body) {
  PostOffice office;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(ranks, [&](World& world) {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, world.rank(), ranks);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::CUSTOM,
                      c10::make_intrusive<PostBackend>(office, world.rank(), ranks));
    body(from_process_group(group, timeout));
  });
}

class OnAProcessGroup : public ::testing::TestWithParam<std::tuple<int, CollectiveCase>> {};

TEST_P(OnAProcessGroup, Do) {
  const auto& [ranks, collective] = GetParam();
  on_groups(ranks, 20s, [&](const Communicator& comm) { collective.run(comm); });
}

INSTANTIATE_TEST_SUITE_P(ProcessGroup, OnAProcessGroup,
                         ::testing::Combine(::testing::Range(1, 5),
                                            ::testing::ValuesIn(collective_cases())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + "_on_" +
                                  std::to_string(std::get<0>(info.param));
                         });

TEST(ProcessGroup, CarriesAMeshOnWhichOpsEqualPlainLibTorch) {
  on_groups(3, 20s, [](const Communicator& comm) {
    const DeviceMesh mesh(comm, {{"domain", -1}}, torch::kCPU);
    torch::manual_seed(5);
    const auto plain = torch::randn({1, 2, 11, 6}, torch::kDouble).requires_grad_();
    const auto weight = torch::randn({4, 2, 3, 3}, torch::kDouble);
    const auto x = scatter_tensor(plain.detach(), 0, mesh, {Shard(2)}).requires_grad_();
    const auto net = [&](const torch::Tensor& input) {
      return at::group_norm(at::conv2d(input, weight, {}, 1, 1), 2).square().sum();
    };
    const auto loss = net(x);
    const auto want = net(plain);
    loss.backward();
    want.backward();
    EXPECT_TRUE(torch::allclose(ShardTensor(loss).full(), want.detach(), 1e-12));
    EXPECT_TRUE(torch::allclose(ShardTensor(x.grad()).full(), plain.grad(), 1e-10, 1e-12));
  });
}

TEST(ProcessGroup, RanksThatCallDifferentCollectivesAllHearOfIt) {
  on_groups(3, 20s, [](const Communicator& comm) {
    torch::Tensor x = torch::ones({4});
    const auto call = [&] { comm.rank() == 1 ? comm.broadcast(x, 0) : comm.all_reduce(x); };
    EXPECT_THROW(call(), CommMismatch);
    EXPECT_THROW(comm.barrier(), CommMismatch);  // dead from now on
  });
}

TEST(ProcessGroup, RanksThatPassDifferentSizesAllHearOfIt) {
  on_groups(2, 20s, [](const Communicator& comm) {
    torch::Tensor x = torch::ones({4 + comm.rank()});
    EXPECT_THROW(comm.all_reduce(x), CommMismatch);
  });
}

TEST(ProcessGroup, ARankThatDoesNotComeIsNamed) {
  on_groups(2, 200ms, [](const Communicator& comm) {
    if (comm.rank() == 1) return;
    try {
      comm.barrier();
      ADD_FAILURE() << "rank 1 never came";
    } catch (const CommTimeout& error) {
      EXPECT_THAT(error.what_without_backtrace(), ::testing::HasSubstr("waited for rank 1"));
    }
  });
}

TEST(ProcessGroup, ARankThatFailsTellsTheOthersWhy) {
  on_groups(3, 20s, [](const Communicator& comm) {
    if (comm.rank() == 2) return comm.poison("out of coffee");
    try {
      comm.barrier();
      ADD_FAILURE() << "rank 2 never came";
    } catch (const PeerFailed& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  ::testing::HasSubstr("rank 2 failed: out of coffee"));
    }
  });
}

TEST(ProcessGroup, WithoutACpuBackendIsRefused) {
  const auto group =
      c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  EXPECT_THROW(from_process_group(group), ConfigError);
  EXPECT_THROW(from_process_group(Group()), ConfigError);
}

}  // namespace
}  // namespace shard::testing
