// SPDX-License-Identifier: Apache-2.0
// MpiWorld: what all communicators of one MPI job share: the two MPI communicators (data, control)
// and the wait that cannot hang.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/messages/message_transport.h"
#include "comm/mpi/mpi_control.h"
#include "comm/mpi/mpi_header.h"

namespace shard {

/// Requests under way, and for each the world rank at the other end.
struct MpiRequests {
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  void add(MPI_Request request, int peer) {
    requests.push_back(request);
    peers.push_back(peer);
  }
};

class MpiWorld final : public MessageTransport {
 public:
  /// Collective over `base`.
  MpiWorld(MPI_Comm base, std::chrono::milliseconds timeout);

  MPI_Comm data() const { return data_; }
  MpiControl& control() { return control_; }
  const char* name() const override { return "mpi"; }
  int rank() const override { return control_.rank(); }
  int size() const { return control_.size(); }
  bool serves_helpers() const override { return true; }
  /// NOTE [One thread in MPI]
  /// MPI_THREAD_SERIALIZED: whoever calls MPI, or touches what control() knows, holds this lock;
  /// whoever waits lets go of it between two polls.
  std::unique_lock<std::recursive_mutex> lock() const { return std::unique_lock(mutex_); }

  void begin(const MessageOperation& operation) override;
  void move(const MessageOperation& operation, const MessageRoundPlan& plan,
            const std::shared_ptr<void>& memory) override;
  void announce(const Failure& failure) noexcept override {
    const auto held = lock();
    control_.fail(failure);
  }
  std::optional<Failure> failure() const override {
    const auto held = lock();
    return control_.failure();
  }

  /// Waits for all requests; `on_done(i)` as each completes, which may add more. Ends early when a
  /// rank fails, has ended, is in another operation, or when the time is over.
  void wait(MpiRequests& waiting, const MessageOperation& operation,
            const std::function<void(size_t)>& on_done);

 private:
  mutable std::recursive_mutex mutex_;
  MPI_Comm data_ = MPI_COMM_NULL;
  MpiControl control_;
  std::chrono::milliseconds timeout_;
  int spins_;
};

}  // namespace shard
