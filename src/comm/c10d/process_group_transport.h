// SPDX-License-Identifier: Apache-2.0
// Messages by the sends and receives of a c10d::ProcessGroup. A round is two: fixed-size headers,
// and, once they are what was expected, the pieces.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "comm/messages/message_transport.h"

namespace shard {

class ProcessGroupTransport final : public MessageTransport {
 public:
  ProcessGroupTransport(c10::intrusive_ptr<c10d::ProcessGroup> group,
                        std::chrono::milliseconds timeout);

  const char* name() const override { return "c10d"; }
  int rank() const override { return group_->getRank(); }
  void begin(const MessageOperation& operation) override { raise_if_failed(operation); }
  void move(const MessageOperation& operation, const MessageRoundPlan& plan,
            const std::shared_ptr<void>& memory) override;
  void announce(const Failure& failure) noexcept override;
  std::optional<Failure> failure() const override { return failure_; }

 private:
  class Round;
  using Work = c10::intrusive_ptr<c10d::Work>;
  void wait(const MessageOperation& operation, const Work& work, int peer);
  void read_failure() noexcept;

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::chrono::milliseconds timeout_;
  std::optional<Failure> failure_;
};

}  // namespace shard
