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

#include "comm/fingerprint.h"
#include "comm/mpi/mpi_world.h"

namespace shard {

/// Largest message; tests lower it.
int64_t chunk_bytes();
void set_chunk_bytes(int64_t bytes);

/// Contiguous memory of a piece, and what is known of it on this side.
struct MpiPiece {
  int peer = 0;  ///< world rank
  void* data = nullptr;
  int64_t bytes = 0;
  Fingerprint::Words shape{};
};

class MpiTransfer {
 public:
  MpiTransfer(MpiWorld& world, const MpiOperation& operation, const Fingerprint& fingerprint);
  void send(const MpiPiece& piece) { sends_.push_back(piece); }
  void receive(const MpiPiece& piece) { receives_.push_back(piece); }
  /// Moves everything. When it raises, requests may still be under way: bury the transfer and what
  /// keeps the pieces' memory alive.
  void run();

 private:
  static constexpr size_t kInlineBytes =
      3840;  // header and piece stay below the usual eager limit of 4 KB
  struct Header {
    Fingerprint::Words operation{};
    Fingerprint::Words shape{};
    int64_t bytes = 0;
    uint32_t index = 0;  ///< of the message between these two ranks
    uint32_t count = 0;  ///< messages between these two ranks
  };
  struct Packet {
    Header header;
    std::array<std::byte, kInlineBytes> piece;
  };
  /// Indices and counts of messages, by peer.
  struct Numbering {
    std::vector<uint32_t> index, count;
  };
  static bool is_inline(const MpiPiece& piece);
  static Numbering number(const std::vector<MpiPiece>& pieces);
  Packet& new_packet();
  void post_receive(const MpiPiece& piece);
  void post_send(const MpiPiece& piece, uint32_t index, uint32_t count);
  template <class Post>
  void post_chunks(const MpiPiece& piece, const Post& post);
  void on_done(size_t request);
  void receive_chunks(const MpiPiece& piece);
  void check_header(const Header& header, size_t receive);
  [[noreturn]] void mismatch(const std::string& what);
  int header_tag() const { return 2 * operation_.tag; }
  int piece_tag() const { return 2 * operation_.tag + 1; }

  MpiWorld& world_;
  MpiOperation operation_;
  Fingerprint fingerprint_;
  std::vector<MpiPiece> sends_, receives_;
  Numbering expected_;
  std::vector<std::unique_ptr<Packet>> packets_;
  MpiRequests waiting_;
  std::vector<int> receive_of_;  ///< by request: the receive whose header it is, or -1
};

}  // namespace shard
