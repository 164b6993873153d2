// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_phase.h"

#include <ATen/ops/empty.h>

#include "comm/copy.h"
#include "comm/volume.h"

namespace shard {
namespace {

Fingerprint::Words shape_of(const at::Tensor& tensor) {
  return Fingerprint(0, CommKind::None).with_tensor(tensor).words();
}

}  // namespace

MpiPhase::MpiPhase(MpiWorld& world, const MpiOperation& operation, const Fingerprint& fingerprint,
                   const std::vector<int>& world_ranks)
    : world_(world),
      world_ranks_(world_ranks),
      memory_(std::make_shared<Memory>(MpiTransfer(world, operation, fingerprint))) {}

MpiPhase::~MpiPhase() {
  if (!is_done_) MpiWorld::bury(memory_);
}

void MpiPhase::send_piece(const MpiPiece& piece) {
  memory_->transfer.send(piece);
  bytes_ += piece.bytes;
}

void MpiPhase::send(int rank, const at::Tensor& tensor) {
  const at::Tensor& dense = memory_->tensors.emplace_back(packed(tensor));
  send_piece({world_ranks_[static_cast<size_t>(rank)], const_cast<void*>(dense.const_data_ptr()),
              bytes_of(dense), shape_of(dense)});
}

void MpiPhase::receive(int rank, const at::Tensor& tensor) {
  const bool is_direct = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  const at::Tensor landing = is_direct ? tensor : at::empty(tensor.sizes(), tensor.options());
  memory_->tensors.push_back(landing);
  memory_->transfer.receive({world_ranks_[static_cast<size_t>(rank)], landing.mutable_data_ptr(),
                             bytes_of(landing), shape_of(landing)});
  if (!is_direct) unpacks_.push_back({tensor, landing});
}

void MpiPhase::send_bytes(int rank, const void* data, int64_t bytes) {
  send_piece({world_ranks_[static_cast<size_t>(rank)], const_cast<void*>(data), bytes, {}});
}

void MpiPhase::receive_bytes(int rank, void* data, int64_t bytes) {
  memory_->transfer.receive({world_ranks_[static_cast<size_t>(rank)], data, bytes, {}});
}

int64_t MpiPhase::run() {
  memory_->transfer.run();
  is_done_ = true;
  for (const Unpack& unpack : unpacks_) copy_plain(unpack.to, unpack.from);
  return bytes_;
}

}  // namespace shard
