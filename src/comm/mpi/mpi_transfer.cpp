// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_transfer.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "comm/mpi/mpi_call.h"

namespace shard {
namespace {

std::atomic<int64_t> chunk{int64_t{1} << 30};

}  // namespace

int64_t chunk_bytes() { return chunk.load(); }
void set_chunk_bytes(int64_t bytes) { chunk.store(bytes); }

MpiTransfer::MpiTransfer(MpiWorld& world, const MessageOperation& operation,
                         const MessageRoundPlan& plan, std::shared_ptr<void> memory)
    : world_(world),
      operation_(operation),
      memory_(std::move(memory)),
      plan_(plan),
      expected_(plan.receives) {}

bool MpiTransfer::is_inline(const MessagePiece& piece) {
  return piece.bytes <= static_cast<int64_t>(kInlineBytes);
}

void MpiTransfer::run() {
  post();
  world_.wait(waiting_, operation_, [this](size_t request) { on_done(request); });
}

void MpiTransfer::post() {
  const auto held = world_.lock();
  const MessageNumbering numbering(plan_.sends);
  for (const MessagePiece& piece : plan_.receives) post_receive(piece);
  for (size_t i = 0; i < plan_.sends.size(); ++i) {
    post_send(plan_.sends[i], numbering.index[i], numbering.count[i]);
  }
}

MpiTransfer::Packet& MpiTransfer::new_packet() {
  packets_.push_back(std::make_unique_for_overwrite<Packet>());
  return *packets_.back();
}

// Receives come before sends, so packet i and header request i belong to receive i.
void MpiTransfer::post_receive(const MessagePiece& piece) {
  Packet& packet = new_packet();
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Irecv(&packet, sizeof packet, MPI_BYTE, piece.peer, header_tag(), world_.data(),
                      &request),
            "MPI_Irecv");
  waiting_.add(request, piece.peer);
  receive_of_.push_back(static_cast<int>(packets_.size()) - 1);
}

void MpiTransfer::post_send(const MessagePiece& piece, uint32_t index, uint32_t count) {
  Packet& packet = new_packet();
  packet.header = {plan_.fingerprint.words(), piece.shape, piece.bytes, index, count};
  size_t length = sizeof(MessageHeader);
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
void MpiTransfer::post_chunks(const MessagePiece& piece, const Post& post) {
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
  world_.check_header(operation_, plan_, receive, expected_.count[receive], packet.header);
  const MessagePiece& piece = plan_.receives[receive];
  if (!is_inline(piece)) return receive_chunks(piece);
  if (piece.bytes > 0) {
    std::memcpy(piece.data, packet.piece.data(), static_cast<size_t>(piece.bytes));
  }
}

// Only after the header has been checked: Open MPI 4 writes beyond a buffer that is too small for a
// large message.
void MpiTransfer::receive_chunks(const MessagePiece& piece) {
  post_chunks(piece, [&](void* data, int bytes, MPI_Request* request) {
    return MPI_Irecv(data, bytes, MPI_BYTE, piece.peer, piece_tag(), world_.data(), request);
  });
}

}  // namespace shard
