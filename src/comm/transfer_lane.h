// SPDX-License-Identifier: Apache-2.0
// TransferLane: the helper thread of a rank that moves messages while the rank computes.
//
// NOTE [Lanes]
// The helper works on a communicator of its own, so what it does and what the rank does meanwhile
// are matched apart, each in its order, with all that a communicator promises: fingerprints, a
// timeout, an end to every wait when a rank fails. Whatever an exchange raises on the helper is
// raised by the rank's wait() for it. A rank that gives up (it unwinds while an exchange is under
// way) leaves its helper behind: the failure of the job ends the helper's wait, and it lets go of
// the tensors.
#pragma once

#include <shard/communicator.h>

#include <chrono>
#include <memory>
#include <vector>

namespace shard {

/// For tests: what every byte of an exchange takes on the helper threads of this process, beyond
/// what it takes anyway.
void set_transfer_delay(std::chrono::duration<double, std::nano> per_byte);

class TransferLane {
 public:
  class Transfer;

  explicit TransferLane(std::shared_ptr<CommunicatorBackend> base) : base_(std::move(base)) {}
  ~TransferLane();
  TransferLane(const TransferLane&) = delete;
  TransferLane& operator=(const TransferLane&) = delete;

  /// Starts the helper at the first call, which is collective. False: the backend has no lanes.
  bool open();
  std::shared_ptr<Transfer> start(std::vector<Message> sends, std::vector<Message> receives);
  void wait(Transfer& transfer);
  int64_t bytes_sent() const;

 private:
  struct Helper;
  std::shared_ptr<CommunicatorBackend> base_;
  std::shared_ptr<Helper> helper_;
  bool is_opened_ = false;
};

}  // namespace shard
