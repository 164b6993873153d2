// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <c10/util/SmallVector.h>
#include <shard/error.h>

#include <cstring>

#include "comm/copy.h"
#include "comm/reduce.h"
#include "comm/texts.h"
#include "comm/threads/thread_communicator.h"

namespace shard {
namespace {

constexpr size_t kInline = 16;  // ranks whose pointers fit without an allocation

void check_cpu(CommKind kind, const at::Tensor& tensor) {
  check<CommError>(tensor.is_cpu(), name_of(kind), "thread ranks exchange CPU tensors: got one on ",
                   tensor.device(), "; expected cpu. Move it to the CPU or use one process a GPU.");
}

void add(std::atomic<int64_t>& counter, int64_t bytes) {  // written by one thread only
  counter.store(counter.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
}

}  // namespace

void ThreadCommunicator::barrier() { begin(start_collective(CommKind::Barrier), 2); }

void ThreadCommunicator::all_reduce(at::Tensor& tensor, ReduceOp op) {
  check_cpu(CommKind::AllReduce, tensor);
  check_reducible("all_reduce", tensor.scalar_type(), op);
  const auto fingerprint = start_collective(CommKind::AllReduce).with_tensor(tensor).with_op(op);
  reduce_packed(
      tensor, [&](const at::Tensor& dense) { reduce_small(dense, op, fingerprint); },
      [&](const at::Tensor& dense) { reduce_large(dense, op, fingerprint); });
}

// Every rank publishes a copy and sums all copies: one wait, and none at the end, because the next
// small reduction uses the other copy (as in NOTE [Two fingerprints a rank]).
void ThreadCommunicator::reduce_small(const at::Tensor& dense, ReduceOp op,
                                      Fingerprint fingerprint) {
  const size_t place = collectives_ % 2;
  auto& staging = own().staging[place];
  if (!staging) staging.reset(new std::byte[kSmallReduceBytes]);
  const int64_t bytes = bytes_of(dense);
  if (bytes > 0) std::memcpy(staging.get(), dense.const_data_ptr(), static_cast<size_t>(bytes));
  begin(fingerprint, 2);
  c10::SmallVector<const void*, kInline> sources;
  for (int r = 0; r < size(); ++r) sources.push_back(group_->slot(r).staging[place].get());
  for (const int peer : others_) add(own().received[static_cast<size_t>(peer)], bytes);
  reduce_in_order(dense.scalar_type(), op, sources, {dense.mutable_data_ptr()}, 0, dense.numel());
}

// Every rank sums its own slice over all tensors and stores it into all of them.
void ThreadCommunicator::reduce_large(const at::Tensor& dense, ReduceOp op,
                                      Fingerprint fingerprint) {
  begin_with(fingerprint, dense);
  c10::SmallVector<const void*, kInline> sources;
  c10::SmallVector<void*, kInline> outputs;
  for (int r = 0; r < size(); ++r) {
    outputs.push_back(group_->slot(r).tensors[0].mutable_data_ptr());
    sources.push_back(outputs.back());
  }
  const Slice slice = reduction_slice(dense.numel(), rank_, size());
  reduce_in_order(dense.scalar_type(), op, sources, outputs, slice.begin, slice.end);
  const int64_t bytes = slice.size() * static_cast<int64_t>(dense.element_size());
  for (const int peer : others_) add(own().received[static_cast<size_t>(peer)], bytes);
  add(own().stored, bytes * (size() - 1));
  end();
}

void ThreadCommunicator::all_gather_v(const at::Tensor& piece,
                                      const std::vector<at::Tensor>& outputs) {
  const auto fingerprint = start_collective(CommKind::AllGatherV).with_dtype(piece.scalar_type());
  announce_with(fingerprint, piece);
  receive(outputs[static_cast<size_t>(rank_)], piece, rank_);
  meet(fingerprint);
  for (const int peer : others_) {
    receive(outputs[static_cast<size_t>(peer)], peer_tensor(peer, 0), peer);
  }
  end();
}

void ThreadCommunicator::reduce_scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output,
                                          ReduceOp op) {
  check_cpu(CommKind::ReduceScatterV, output);
  check_reducible("reduce_scatter_v", output.scalar_type(), op);
  std::vector<at::Tensor> dense_pieces;
  for (const at::Tensor& piece : pieces) dense_pieces.push_back(packed(piece));
  begin_with(
      start_collective(CommKind::ReduceScatterV).with_dtype(output.scalar_type()).with_op(op),
      dense_pieces);
  const bool is_dense = output.is_contiguous() && !output.is_conj() && !output.is_neg();
  const at::Tensor dense = is_dense ? output : at::empty(output.sizes(), output.options());
  reduce_pieces(dense, op);
  if (!is_dense) copy_plain(output, dense);
  end();
}

void ThreadCommunicator::reduce_pieces(const at::Tensor& dense, ReduceOp op) {
  c10::SmallVector<const void*, kInline> sources;
  for (int r = 0; r < size(); ++r) {
    const at::Tensor& piece = peer_tensor(r, rank_);
    check_same(dense, piece, r);
    sources.push_back(piece.const_data_ptr());
    if (r != rank_) add(own().received[static_cast<size_t>(r)], bytes_of(piece));
  }
  reduce_in_order(dense.scalar_type(), op, sources, {dense.mutable_data_ptr()}, 0, dense.numel());
}

void ThreadCommunicator::all_to_all_v(const std::vector<at::Tensor>& sends,
                                      const std::vector<at::Tensor>& receives) {
  const auto fingerprint = start_collective(CommKind::AllToAllV);
  const auto own_place = static_cast<size_t>(rank_);
  announce_with(fingerprint, sends);
  receive(receives[own_place], sends[own_place], rank_);
  meet(fingerprint);
  for (const int peer : others_) {
    receive(receives[static_cast<size_t>(peer)], peer_tensor(peer, rank_), peer);
  }
  end();
}

void ThreadCommunicator::broadcast(at::Tensor& tensor, int root) {
  const auto fingerprint =
      start_collective(CommKind::Broadcast).with_tensor(tensor).with_root(root);
  if (rank_ == root) {
    begin_with(fingerprint, tensor);
  } else {
    begin(fingerprint);
    receive(tensor, peer_tensor(root, 0), root);
  }
  end(/*wait=*/rank_ == root);
}

void ThreadCommunicator::scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output,
                                   int root) {
  const auto fingerprint =
      start_collective(CommKind::ScatterV).with_dtype(output.scalar_type()).with_root(root);
  if (rank_ == root) {
    begin_with(fingerprint, pieces);
  } else {
    begin(fingerprint);
  }
  receive(output, peer_tensor(root, rank_), root);
  end(/*wait=*/rank_ == root);
}

std::vector<std::string> ThreadCommunicator::all_gather_bytes(const std::string& bytes) {
  return gather_bytes(CommKind::AllGatherBytes, bytes);
}

std::vector<std::string> ThreadCommunicator::gather_bytes(CommKind kind, const std::string& bytes) {
  const auto fingerprint = start_collective(kind);
  own().bytes = bytes;
  begin(fingerprint);
  std::vector<std::string> all;
  for (int r = 0; r < size(); ++r) {
    all.push_back(group_->slot(r).bytes);
    const bool is_payload = r != rank_ && kind == CommKind::AllGatherBytes;
    if (is_payload) {
      add(own().received[static_cast<size_t>(r)], static_cast<int64_t>(all.back().size()));
    }
  }
  end();
  return all;
}

const at::Tensor& ThreadCommunicator::peer_tensor(int peer, int index) {
  return group_->slot(peer).tensors[static_cast<size_t>(index)];
}

void ThreadCommunicator::receive(const at::Tensor& to, const at::Tensor& from, int peer) {
  check_same(to, from, peer);
  check_cpu(kind_, to);
  check_cpu(kind_, from);
  copy_plain(to, from);
  if (peer != rank_) add(own().received[static_cast<size_t>(peer)], bytes_of(from));
}

void ThreadCommunicator::check_same(const at::Tensor& to, const at::Tensor& from, int peer) {
  if (to.sizes() == from.sizes() && to.scalar_type() == from.scalar_type()) return;
  mismatch(piece_mismatch_text(group_->world_rank(rank_), dtype_and_sizes(to),
                               group_->world_rank(peer), dtype_and_sizes(from)));
}

}  // namespace shard
