// SPDX-License-Identifier: Apache-2.0
// Collectives whose tensors are copied to the host and back: what GPU tensors do without NCCL. All
// cases of the other backends, here over thread ranks.
#include "comm/staged/staged_backend.h"

#include <gtest/gtest.h>
#include <shard/launch.h>

#include "comm/threads/thread_communicator.h"
#include "support/collective_cases.h"

namespace shard::testing {
namespace {

using namespace std::chrono_literals;

class Staged : public ::testing::TestWithParam<std::tuple<int, CollectiveCase>> {};

TEST_P(Staged, Do) {
  const auto& [ranks, collective] = GetParam();
  const auto hosts = make_thread_communicators(std::make_shared<ThreadWorld>(ranks, 60s), ranks);
  run_ranks(ranks, [&](World& world) {
    const auto& host = hosts[static_cast<size_t>(world.rank())];
    const Communicator comm(std::make_shared<StagedBackend>(host), "world");
    EXPECT_STREQ(comm.backend_name(), "threads, staged");
    collective.run(comm);
  });
}

INSTANTIATE_TEST_SUITE_P(Comm, Staged,
                         ::testing::Combine(::testing::Range(1, 5),
                                            ::testing::ValuesIn(collective_cases())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + "_on_" +
                                  std::to_string(std::get<0>(info.param));
                         });

}  // namespace
}  // namespace shard::testing
