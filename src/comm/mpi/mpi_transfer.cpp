// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_transfer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

#include "comm/mpi/mpi_call.h"
#include "comm/texts.h"

namespace shard {
namespace {

std::atomic<int64_t> chunk{int64_t{1} << 30};

}  // namespace

int64_t chunk_bytes() { return chunk.load(); }
void set_chunk_bytes(int64_t bytes) { chunk.store(bytes); }

MpiTransfer::MpiTransfer(MpiWorld& world, const MpiOperation& operation,
                         const Fingerprint& fingerprint)
    : world_(world), operation_(operation), fingerprint_(fingerprint) {}

bool MpiTransfer::is_inline(const MpiPiece& piece) {
  return piece.bytes <= static_cast<int64_t>(kInlineBytes);
}

MpiTransfer::Numbering MpiTransfer::number(const std::vector<MpiPiece>& pieces) {
  Numbering numbering;
  std::map<int, uint32_t> next;
  for (const MpiPiece& piece : pieces) numbering.index.push_back(next[piece.peer]++);
  for (const MpiPiece& piece : pieces) numbering.count.push_back(next[piece.peer]);
  return numbering;
}

void MpiTransfer::run() {
  expected_ = number(receives_);
  const Numbering numbering = number(sends_);
  for (const MpiPiece& piece : receives_) post_receive(piece);
  for (size_t i = 0; i < sends_.size(); ++i) {
    post_send(sends_[i], numbering.index[i], numbering.count[i]);
  }
  world_.wait(waiting_, operation_, [this](size_t request) { on_done(request); });
}

MpiTransfer::Packet& MpiTransfer::new_packet() {
  packets_.push_back(std::unique_ptr<Packet>(new Packet));
  return *packets_.back();
}

// Receives come before sends, so packet i and header request i belong to receive i.
void MpiTransfer::post_receive(const MpiPiece& piece) {
  Packet& packet = new_packet();
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Irecv(&packet, sizeof packet, MPI_BYTE, piece.peer, header_tag(), world_.data(),
                      &request),
            "MPI_Irecv");
  waiting_.add(request, piece.peer);
  receive_of_.push_back(static_cast<int>(packets_.size()) - 1);
}

void MpiTransfer::post_send(const MpiPiece& piece, uint32_t index, uint32_t count) {
  Packet& packet = new_packet();
  packet.header = {fingerprint_.words(), piece.shape, piece.bytes, index, count};
  size_t length = sizeof(Header);
  if (is_inline(piece) && piece.bytes > 0) {
    std::memcpy(packet.piece.data(), piece.data, static_cast<size_t>(piece.bytes));
    length += static_cast<size_t>(piece.bytes);
  }
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(&packet, static_cast<int>(length), MPI_BYTE, piece.peer, header_tag(),
                      world_.data(), &request),
            "MPI_Isend");
  waiting_.add(request, piece.peer);
  receive_of_.push_back(-1);
  if (is_inline(piece)) return;
  post_chunks(piece, [&](void* data, int bytes, MPI_Request* chunk_request) {
    return MPI_Isend(data, bytes, MPI_BYTE, piece.peer, piece_tag(), world_.data(), chunk_request);
  });
}

template <class Post>
void MpiTransfer::post_chunks(const MpiPiece& piece, const Post& post) {
  for (int64_t at = 0; at < piece.bytes; at += chunk_bytes()) {
    const int64_t bytes = std::min(chunk_bytes(), piece.bytes - at);
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(post(static_cast<std::byte*>(piece.data) + at, static_cast<int>(bytes), &request),
              "MPI_Isend or MPI_Irecv");
    waiting_.add(request, piece.peer);
    receive_of_.push_back(-1);
  }
}

void MpiTransfer::on_done(size_t request) {
  const int index = receive_of_[request];
  if (index < 0) return;
  const auto receive = static_cast<size_t>(index);
  const Packet& packet = *packets_[receive];
  check_header(packet.header, receive);
  const MpiPiece& piece = receives_[receive];
  if (!is_inline(piece)) return receive_chunks(piece);
  if (piece.bytes > 0) {
    std::memcpy(piece.data, packet.piece.data(), static_cast<size_t>(piece.bytes));
  }
}

// Only after the header has been checked: Open MPI 4 writes beyond a buffer that is too small for a
// large message.
void MpiTransfer::receive_chunks(const MpiPiece& piece) {
  post_chunks(piece, [&](void* data, int bytes, MPI_Request* request) {
    return MPI_Irecv(data, bytes, MPI_BYTE, piece.peer, piece_tag(), world_.data(), request);
  });
}

void MpiTransfer::check_header(const Header& header, size_t receive) {
  const MpiPiece& piece = receives_[receive];
  const Fingerprint theirs(header.operation);
  if (theirs != fingerprint_) {
    const bool is_same_call = theirs.sequence() == fingerprint_.sequence();
    const std::string call =
        is_same_call ? theirs.text()
                     : c10::str(theirs.text(), " (its operation ", theirs.sequence(), ")");
    mismatch(disagreement_text(operation_.number,
                               {{fingerprint_.text(), {world_.rank()}}, {call, {piece.peer}}}));
  }
  if (header.count != expected_.count[receive]) {
    mismatch(lost_message_text(operation_.number, world_.rank(), expected_.count[receive],
                               piece.peer, header.count, theirs.text()));
  }
  if (header.shape != piece.shape || header.bytes != piece.bytes) {
    mismatch(piece_mismatch_text(world_.rank(), Fingerprint(piece.shape).tensor_text(), piece.peer,
                                 Fingerprint(header.shape).tensor_text()));
  }
}

void MpiTransfer::mismatch(const std::string& what) {
  world_.fail(operation_, {Failure::Kind::Mismatch, world_.rank(), what, name_of(operation_.kind)});
}

}  // namespace shard
