// SPDX-License-Identifier: Apache-2.0
#include "comm/messages/message_transport.h"

#include <map>
#include <mutex>

#include "comm/texts.h"

namespace shard {

MessageNumbering::MessageNumbering(const std::vector<MessagePiece>& pieces) {
  std::map<int, uint32_t> next;
  for (const MessagePiece& piece : pieces) index.push_back(next[piece.peer]++);
  for (const MessagePiece& piece : pieces) count.push_back(next[piece.peer]);
}

void keep_for_good(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>();  // outlives all threads
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
}

void MessageTransport::fail(const MessageOperation& operation, const Failure& failure) {
  announce(failure);
  raise_failure(name_of(operation.kind), *this->failure());
}

void MessageTransport::raise_if_failed(const MessageOperation& operation) const {
  if (const auto first = failure()) raise_failure(name_of(operation.kind), *first);
}

void MessageTransport::mismatch(const MessageOperation& operation, const std::string& what) {
  fail(operation, {Failure::Kind::Mismatch, rank(), what, name_of(operation.kind)});
}

void MessageTransport::check_header(const MessageOperation& operation, const MessageRoundPlan& plan,
                                    size_t receive, uint32_t expected_count,
                                    const MessageHeader& header) {
  const MessagePiece& piece = plan.receives[receive];
  const Fingerprint theirs(header.operation);
  if (theirs != plan.fingerprint) {
    const bool is_same_call = theirs.sequence() == plan.fingerprint.sequence();
    const std::string call =
        is_same_call ? theirs.text()
                     : c10::str(theirs.text(), " (its operation ", theirs.sequence(), ")");
    mismatch(operation, disagreement_text(operation.number, {{plan.fingerprint.text(), {rank()}},
                                                             {call, {piece.peer}}}));
  }
  if (header.count != expected_count) {
    mismatch(operation, lost_message_text(operation.number, rank(), expected_count, piece.peer,
                                          header.count, theirs.text()));
  }
  if (header.shape != piece.shape || header.bytes != piece.bytes) {
    mismatch(operation, piece_mismatch_text(rank(), Fingerprint(piece.shape).tensor_text(),
                                            piece.peer, Fingerprint(header.shape).tensor_text()));
  }
}

}  // namespace shard
