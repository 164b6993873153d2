// SPDX-License-Identifier: Apache-2.0
// MpiTransfer: the one way in which data moves between MPI ranks: a set of sends and receives, each
// with a header that carries the fingerprints of the operation and of the piece. A small piece
// rides in its header's message. A large one follows in messages of at most `chunk_bytes()`, since
// MPI counts with an int.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/messages/message_transport.h"
#include "comm/mpi/mpi_world.h"

namespace shard {

/// Largest message; tests lower it.
int64_t chunk_bytes();
void set_chunk_bytes(int64_t bytes);

class MpiTransfer {
 public:
  /// `memory` keeps the plan and what it points into.
  MpiTransfer(MpiWorld& world, const MessageOperation& operation, const MessageRoundPlan& plan,
              std::shared_ptr<void> memory);
  /// Moves everything. When it raises, requests may still be under way: bury the transfer.
  void run();

 private:
  static constexpr size_t kInlineBytes =
      3840;  // header and piece stay below the usual eager limit of 4 KB
  struct Packet {
    MessageHeader header;
    std::array<std::byte, kInlineBytes> piece;
  };
  static bool is_inline(const MessagePiece& piece);
  void post();
  Packet& new_packet();
  void post_receive(const MessagePiece& piece);
  void post_send(const MessagePiece& piece, uint32_t index, uint32_t count);
  template <class Post>
  void post_chunks(const MessagePiece& piece, const Post& post);
  void on_done(size_t request);
  void receive_chunks(const MessagePiece& piece);
  int header_tag() const { return 2 * operation_.tag; }
  int piece_tag() const { return 2 * operation_.tag + 1; }

  MpiWorld& world_;
  MessageOperation operation_;
  std::shared_ptr<void> memory_;
  const MessageRoundPlan& plan_;
  MessageNumbering expected_;
  std::vector<std::unique_ptr<Packet>> packets_;
  MpiRequests waiting_;
  std::vector<int> receive_of_;  ///< by request: the receive whose header it is, or -1
};

}  // namespace shard
