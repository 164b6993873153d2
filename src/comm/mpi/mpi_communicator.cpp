// SPDX-License-Identifier: Apache-2.0
// What is not about moving tensors; that is in mpi_collectives.cpp and mpi_reductions.cpp.
#include "comm/mpi/mpi_communicator.h"

#include <shard/error.h>

#include <algorithm>
#include <cstring>

#include "comm/copy.h"
#include "comm/mpi/mpi_phase.h"
#include "comm/texts.h"
#include "comm/volume.h"

namespace shard {

MpiCommunicator::MpiCommunicator(std::shared_ptr<MpiWorld> world, int tag,
                                 std::vector<int> world_ranks)
    : world_(std::move(world)), world_ranks_(std::move(world_ranks)) {
  operation_.tag = tag;
  operation_.members = world_ranks_;
  const auto me = std::find(world_ranks_.begin(), world_ranks_.end(), world_->rank());
  rank_ = static_cast<int>(me - world_ranks_.begin());
}

Fingerprint MpiCommunicator::start(CommKind kind) {
  operation_.kind = kind;
  ++operation_.number;
  world_->control().note(operation_.tag, {operation_.number, kind});
  world_->raise_if_failed(operation_);
  return {operation_.number, kind};
}

// Dissemination: in round r everybody hears from the rank 2^r before it.
void MpiCommunicator::barrier() {
  const Fingerprint fingerprint = start(CommKind::Barrier);
  for (int step = 1; step < size(); step *= 2) {
    MpiPhase phase(*world_, operation_, fingerprint, world_ranks_);
    phase.send_bytes((rank_ + step) % size(), nullptr, 0);
    phase.receive_bytes((rank_ - step + size()) % size(), nullptr, 0);
    phase.run();
  }
}

std::vector<std::string> MpiCommunicator::all_gather_bytes(const std::string& bytes) {
  auto all = gather_bytes(CommKind::AllGatherBytes, bytes);
  bytes_sent_ += all_gather_volume(static_cast<int64_t>(bytes.size()), size());
  return all;
}

// Lengths first, since receivers must know them; then the bytes.
std::vector<std::string> MpiCommunicator::gather_bytes(CommKind kind, const std::string& bytes) {
  const auto fingerprint = start(kind);
  const auto count = static_cast<size_t>(size());
  const auto lengths = std::make_shared<std::vector<int64_t>>(count);
  const auto all = std::make_shared<std::vector<std::string>>(count);
  const auto own = static_cast<size_t>(rank_);
  (*lengths)[own] = static_cast<int64_t>(bytes.size());
  (*all)[own] = bytes;
  for (const bool is_length : {true, false}) {
    MpiPhase phase(*world_, operation_, fingerprint, world_ranks_);
    phase.keep(lengths);
    phase.keep(all);
    for (int i = 1; i < size(); ++i) {
      const int peer = (rank_ + i) % size();
      int64_t& length = (*lengths)[static_cast<size_t>(peer)];
      std::string& text = (*all)[static_cast<size_t>(peer)];
      if (is_length) {
        phase.send_bytes(peer, &(*lengths)[own], sizeof(int64_t));
        phase.receive_bytes(peer, &length, sizeof(int64_t));
      } else {
        text.resize(static_cast<size_t>(length));
        phase.send_bytes(peer, (*all)[own].data(), (*lengths)[own]);
        phase.receive_bytes(peer, text.data(), length);
      }
    }
    phase.run();
  }
  return *all;
}

std::shared_ptr<CommunicatorBackend> MpiCommunicator::split(int color, int key) {
  // Color and key, and the tag that this rank could use next: the largest of them is free on every
  // rank.
  const int proposal = world_->next_tag();
  std::string bytes = split_bytes(color, key);
  bytes.append(reinterpret_cast<const char*>(&proposal), sizeof proposal);
  const auto gathered = gather_bytes(CommKind::Split, bytes);
  int tag = proposal;
  for (const std::string& theirs : gathered) {
    int value = 0;
    std::memcpy(&value, theirs.data() + theirs.size() - sizeof value, sizeof value);
    tag = std::max(tag, value);
  }
  world_->use_tag(tag);
  std::vector<int> world_ranks;
  for (const int member : split_members(gathered, color)) {
    world_ranks.push_back(world_rank(member));
  }
  return std::make_shared<MpiCommunicator>(world_, tag, std::move(world_ranks));
}

void MpiCommunicator::poison(const std::string& why) noexcept {
  world_->control().fail(failed_rank(world_->rank(), why));
}

void MpiCommunicator::check_cpu(CommKind kind, const at::Tensor& tensor) {
  check<CommError>(tensor.is_cpu(), name_of(kind), "MPI ranks exchange CPU tensors: got one on ",
                   tensor.device(), "; expected cpu. Move it to the CPU first.");
}

void MpiCommunicator::copy_own(const at::Tensor& to, const at::Tensor& from) {
  check_same(to, from);
  copy_plain(to, from);
}

void MpiCommunicator::check_same(const at::Tensor& to, const at::Tensor& from) {
  if (to.sizes() == from.sizes() && to.scalar_type() == from.scalar_type()) return;
  mismatch(piece_mismatch_text(world_->rank(), dtype_and_sizes(to), world_->rank(),
                               dtype_and_sizes(from)));
}

void MpiCommunicator::mismatch(const std::string& what) {
  world_->fail(operation_,
               {Failure::Kind::Mismatch, world_->rank(), what, name_of(operation_.kind)});
}

}  // namespace shard
