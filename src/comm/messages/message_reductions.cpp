// SPDX-License-Identifier: Apache-2.0
// Sums in rank order; MPI's own reductions sum in an order that varies even within one buffer.
#include <ATen/ops/empty.h>
#include <c10/util/SmallVector.h>

#include "comm/copy.h"
#include "comm/messages/message_communicator.h"
#include "comm/messages/message_round.h"
#include "comm/reduce.h"
#include "comm/volume.h"

namespace shard {

void MessageCommunicator::all_reduce(at::Tensor& tensor, ReduceOp op) {
  check_cpu(CommKind::AllReduce, tensor);
  check_reducible("all_reduce", tensor.scalar_type(), op);
  const auto fingerprint = start(CommKind::AllReduce).with_tensor(tensor).with_op(op);
  reduce_packed(
      tensor, [&](const at::Tensor& dense) { reduce_small(dense, op, fingerprint); },
      [&](const at::Tensor& dense) { reduce_large(dense, op, fingerprint); });
}

void MessageCommunicator::reduce_small(const at::Tensor& dense, ReduceOp op,
                                       const Fingerprint& fingerprint) {
  const auto bytes = static_cast<size_t>(bytes_of(dense));
  const auto gathered =
      std::make_shared<std::vector<std::byte>>(bytes * static_cast<size_t>(size()));
  c10::SmallVector<const void*, 16> sources;
  MessageRound round(*transport_, operation_, fingerprint);
  round.keep(gathered);
  round.keep(std::make_shared<at::Tensor>(dense));
  for (int r = 0; r < size(); ++r) {
    std::byte* place = gathered->data() + static_cast<size_t>(r) * bytes;
    sources.push_back(r == rank_ ? dense.const_data_ptr() : place);
    if (r == rank_) continue;
    round.send_bytes(r, dense.const_data_ptr(), static_cast<int64_t>(bytes));
    round.receive_bytes(r, place, static_cast<int64_t>(bytes));
  }
  bytes_sent_ += round.run();
  reduce_in_order(dense.scalar_type(), op, sources, {dense.mutable_data_ptr()}, 0, dense.numel());
}

void MessageCommunicator::reduce_large(const at::Tensor& dense, ReduceOp op,
                                       const Fingerprint& fingerprint) {
  const auto width = static_cast<int64_t>(dense.element_size());
  auto* data = static_cast<std::byte*>(dense.mutable_data_ptr());
  const Slice own = reduction_slice(dense.numel(), rank_, size());
  const at::Tensor gathered = at::empty({size(), own.size()}, dense.options());
  auto* places = static_cast<std::byte*>(gathered.mutable_data_ptr());
  c10::SmallVector<const void*, 16> sources;
  {
    MessageRound round(*transport_, operation_, fingerprint);
    round.keep(std::make_shared<std::vector<at::Tensor>>(std::vector{gathered, dense}));
    for (int r = 0; r < size(); ++r) {
      std::byte* place = places + r * own.size() * width;
      sources.push_back(r == rank_ ? data + own.begin * width : place);
      if (r == rank_) continue;
      const Slice theirs = reduction_slice(dense.numel(), r, size());
      round.send_bytes(r, data + theirs.begin * width, theirs.size() * width);
      round.receive_bytes(r, place, own.size() * width);
    }
    bytes_sent_ += round.run();
  }
  reduce_in_order(dense.scalar_type(), op, sources, {data + own.begin * width}, 0, own.size());
  MessageRound round(*transport_, operation_, fingerprint);
  round.keep(std::make_shared<at::Tensor>(dense));
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    const Slice theirs = reduction_slice(dense.numel(), r, size());
    round.send_bytes(r, data + own.begin * width, own.size() * width);
    round.receive_bytes(r, data + theirs.begin * width, theirs.size() * width);
  }
  bytes_sent_ += round.run();
}

void MessageCommunicator::reduce_scatter_v(const std::vector<at::Tensor>& pieces,
                                           at::Tensor& output, ReduceOp op) {
  check_cpu(CommKind::ReduceScatterV, output);
  check_reducible("reduce_scatter_v", output.scalar_type(), op);
  const auto fingerprint =
      start(CommKind::ReduceScatterV).with_dtype(output.scalar_type()).with_op(op);
  const auto own = static_cast<size_t>(rank_);
  check_same(output, pieces[own]);
  MessageRound round(*transport_, operation_, fingerprint);
  std::vector<at::Tensor> parts(pieces.size());
  for (int r = 0; r < size(); ++r) {
    at::Tensor& part = parts[static_cast<size_t>(r)];
    part = r == rank_ ? packed(pieces[own]) : at::empty(output.sizes(), output.options());
    if (r == rank_) continue;
    round.send(r, pieces[static_cast<size_t>(r)]);
    round.receive(r, part);
  }
  bytes_sent_ += round.run();
  const at::Tensor result = at::empty(output.sizes(), output.options());
  c10::SmallVector<const void*, 16> sources;
  for (const at::Tensor& part : parts) sources.push_back(part.const_data_ptr());
  reduce_in_order(output.scalar_type(), op, sources, {result.mutable_data_ptr()}, 0,
                  output.numel());
  copy_plain(output, result);
}

}  // namespace shard
