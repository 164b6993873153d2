// SPDX-License-Identifier: Apache-2.0
// MessageTransport: what moves messages between the ranks of a job. The collectives are written
// once, in MessageCommunicator; a backend that can only send and receive is one transport.
//
// NOTE [Communicators are tags]
// Splitting asks nothing of the transport. A communicator is a list of world ranks and a tag that
// differs from the tags of all other communicators of its ranks. Communicators that share a tag
// share no rank, so their messages cannot be mixed up. That keeps split free of blocking calls and
// of a transport's limit on communicators.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "comm/fingerprint.h"

namespace shard {

/// The operation that messages belong to.
struct MessageOperation {
  int tag = 0;                      ///< the communicator's
  c10::ArrayRef<int> members = {};  ///< its world ranks
  uint64_t number = 0;
  CommKind kind = CommKind::None;
  bool is_of_helper = false;  ///< NOTE [Lanes]: the rank's own thread needs the core meanwhile
};

/// Contiguous memory of a message, and what is known of it on this side.
struct MessagePiece {
  int peer = 0;  ///< world rank, never the caller's own
  void* data = nullptr;
  int64_t bytes = 0;
  Fingerprint::Words shape{};
};

/// One round of messages. Several between the same two ranks are matched in their order.
struct MessageRoundPlan {
  Fingerprint fingerprint;
  std::vector<MessagePiece> sends, receives;
};

/// How many messages there are between this rank and each peer, and which of them a piece is.
struct MessageNumbering {
  explicit MessageNumbering(const std::vector<MessagePiece>& pieces);
  std::vector<uint32_t> index, count;
};

/// What travels ahead of a piece.
struct MessageHeader {
  Fingerprint::Words operation{};
  Fingerprint::Words shape{};
  int64_t bytes = 0;
  uint32_t index = 0;  ///< of the message between these two ranks
  uint32_t count = 0;  ///< messages between these two ranks
};

/// Keeps what messages that are still under way may use, until the process ends.
void keep_for_good(std::shared_ptr<void> memory);

class MessageTransport {
 public:
  virtual ~MessageTransport() = default;
  virtual const char* name() const = 0;
  virtual int rank() const = 0;  ///< in the world
  /// Whether a helper thread may call it while the rank's own thread does.
  virtual bool serves_helpers() const { return false; }

  /// The rank is about to do this operation. Raises when the job has failed.
  virtual void begin(const MessageOperation& operation) = 0;
  /// Moves everything. `plan` and what it points into stay alive as long as `memory` does: whoever
  /// raises while messages are under way keeps a reference for good.
  virtual void move(const MessageOperation& operation, const MessageRoundPlan& plan,
                    const std::shared_ptr<void>& memory) = 0;
  /// Tells every rank of a failure (the first one counts).
  virtual void announce(const Failure& failure) noexcept = 0;
  /// The job's first failure.
  virtual std::optional<Failure> failure() const = 0;

  /// The least tag that no communicator of this rank has had.
  int next_tag() const { return next_tag_; }
  void use_tag(int tag) { next_tag_ = tag + 1; }

  /// Announces and raises the job's first failure.
  [[noreturn]] void fail(const MessageOperation& operation, const Failure& failure);
  void raise_if_failed(const MessageOperation& operation) const;
  [[noreturn]] void mismatch(const MessageOperation& operation, const std::string& what);
  /// What came ahead of `plan.receives[receive]` must be what this rank expects.
  void check_header(const MessageOperation& operation, const MessageRoundPlan& plan, size_t receive,
                    uint32_t expected_count, const MessageHeader& header);

 private:
  int next_tag_ = 0;
};

}  // namespace shard
