// SPDX-License-Identifier: Apache-2.0
// Refusals: every rank must raise the same error, from metadata, before any message.
#pragma once

#include <gtest/gtest.h>
#include <shard/comm_counter.h>
#include <shard/launch.h>

#include <functional>
#include <mutex>
#include <set>
#include <string>

namespace shard::testing {

/// Runs `body` on thread ranks, each of which must raise E with the same text, which must contain
/// `text`, and send nothing inside the call. `body` gets the mesh and returns what is to be tried,
/// so that set-up may communicate.
template <class E>
void expect_same_error(int ranks, const std::string& text,
                       const std::function<std::function<void()>(const DeviceMesh&)>& body) {
  std::mutex mutex;
  std::multiset<std::string> messages;
  int64_t calls = 0;
  run_ranks(ranks, [&](World& world) {
    const auto attempt = body(world.mesh());
    const CommCounter counter;
    std::string message = "no error";
    try {
      attempt();
    } catch (const E& error) {
      message = error.what_without_backtrace();
    }
    const std::lock_guard lock(mutex);
    messages.insert(message);
    calls += counter.calls();
  });
  EXPECT_EQ(messages.count(*messages.begin()), messages.size()) << *messages.begin() << "\n"
                                                                << *messages.rbegin();
  EXPECT_NE(messages.begin()->find(text), std::string::npos) << *messages.begin();
  EXPECT_EQ(calls, 0) << "messages before the error";
}

}  // namespace shard::testing
