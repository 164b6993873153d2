// SPDX-License-Identifier: Apache-2.0
#include <shard/communicator.h>
#include <shard/error_boundary.h>
#include <shard/foreign_lock.h>

#include <algorithm>

#include "comm/comm_kind.h"
#include "comm/comm_log.h"
#include "comm/copy.h"
#include "comm/payload.h"
#include "comm/transfer_lane.h"
#include "comm/volume.h"

namespace shard {
namespace {

void bump_version(const at::Tensor& written) {
  at::TensorImpl* impl = written.unsafeGetTensorImpl();
  if (!impl->is_inference()) impl->bump_version();
}

void bump_versions(const std::vector<at::Tensor>& written) {
  for (const at::Tensor& tensor : written) bump_version(tensor);
}

void check_count(CommKind kind, const char* what, size_t got, int size) {
  check<CommError>(got == static_cast<size_t>(size), name_of(kind), "number of ", what, ": got ",
                   got, "; expected ", size, ", one a rank. Pass empty tensors where there is ",
                   "nothing to move.");
}

void check_rank(CommKind kind, const char* what, int got, int size) {
  check<CommError>(got >= 0 && got < size, name_of(kind), what, ": got ", got,
                   "; expected a rank in [0, ", size, "). Pass a rank of this communicator.");
}

void check_peers(const std::vector<Message>& messages, int size) {
  for (const Message& message : messages) {
    check_rank(CommKind::Exchange, "peer", message.peer, size);
  }
}

void copy_own(const at::Tensor& to, const at::Tensor& from) {
  check<CommMismatch>(to.sizes() == from.sizes() && to.scalar_type() == from.scalar_type(),
                      "communicator", "one rank, input and output differ: got sizes ", from.sizes(),
                      "; expected ", to.sizes(), ". Give both the same shape.");
  copy_plain(to, from);
  bump_version(to);
}

}  // namespace

Communicator::Communicator(std::shared_ptr<CommunicatorBackend> backend, std::string name)
    : Communicator(std::move(backend), std::move(name), CommLog::current()) {}

Communicator::Communicator(std::shared_ptr<CommunicatorBackend> backend, std::string name,
                           std::shared_ptr<CommLog> log)
    : backend_(std::move(backend)),
      log_(std::move(log)),
      lane_(std::make_shared<TransferLane>(backend_)),
      name_(std::move(name)),
      rank_(backend_->rank()),
      size_(backend_->size()) {}

const char* Communicator::backend_name() const { return backend_->backend_name(); }
int64_t Communicator::bytes_sent() const { return backend_->bytes_sent() + lane_->bytes_sent(); }
void Communicator::poison(const std::string& why) const noexcept { backend_->poison(why); }

template <class Call>
void Communicator::recorded(CommKind kind, int64_t bytes, const at::Tensor* tensor,
                            const Call& call) const {
  const auto dtype = tensor != nullptr ? tensor->scalar_type() : c10::ScalarType::Undefined;
  const uint64_t number = log_->start({kind, &name_, bytes, dtype});
  detail::at_boundary([&] {
    const detail::WithoutForeignLock unlocked;
    try {
      call();
    } catch (const CommTimeout&) {
      log_->print_recent_calls_once(name_);
      throw;
    }
  });
  log_->finish(number);
}

void Communicator::barrier() const {
  if (size_ == 1) return;
  recorded(CommKind::Barrier, 0, nullptr, [&] { backend_->barrier(); });
}

void Communicator::all_reduce(at::Tensor& tensor, ReduceOp op) const {
  if (size_ == 1) return;
  if (is_wrapper(tensor)) {
    at::Tensor values = writable(tensor);
    return all_reduce(values, op);
  }
  const int64_t bytes = all_reduce_volume(tensor, rank_, size_);
  recorded(CommKind::AllReduce, bytes, &tensor, [&] { backend_->all_reduce(tensor, op); });
  bump_version(tensor);
}

void Communicator::all_gather_v(const at::Tensor& piece,
                                const std::vector<at::Tensor>& outputs) const {
  check_count(CommKind::AllGatherV, "outputs", outputs.size(), size_);
  if (is_special(piece) || any_wrapper(outputs)) {
    return all_gather_v(readable(piece), writable(outputs));
  }
  if (size_ == 1) return copy_own(outputs[0], piece);
  const int64_t bytes = all_gather_volume(bytes_of(piece), size_);
  recorded(CommKind::AllGatherV, bytes, &piece, [&] { backend_->all_gather_v(piece, outputs); });
  bump_versions(outputs);
}

void Communicator::reduce_scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output,
                                    ReduceOp op) const {
  check_count(CommKind::ReduceScatterV, "pieces", pieces.size(), size_);
  if (is_wrapper(output) || any_special(pieces)) {
    at::Tensor values = writable(output);
    return reduce_scatter_v(readable(pieces), values, op);
  }
  if (size_ == 1) return copy_own(output, pieces[0]);
  recorded(CommKind::ReduceScatterV, all_to_all_volume(pieces, rank_), &output,
           [&] { backend_->reduce_scatter_v(pieces, output, op); });
  bump_version(output);
}

void Communicator::all_to_all_v(const std::vector<at::Tensor>& sends,
                                const std::vector<at::Tensor>& receives) const {
  check_count(CommKind::AllToAllV, "sends", sends.size(), size_);
  check_count(CommKind::AllToAllV, "receives", receives.size(), size_);
  if (any_special(sends) || any_wrapper(receives)) {
    return all_to_all_v(readable(sends), writable(receives));
  }
  if (size_ == 1) return copy_own(receives[0], sends[0]);
  recorded(CommKind::AllToAllV, all_to_all_volume(sends, rank_), &sends[0],
           [&] { backend_->all_to_all_v(sends, receives); });
  bump_versions(receives);
}

void Communicator::broadcast(at::Tensor& tensor, int root) const {
  check_rank(CommKind::Broadcast, "root", root, size_);
  if (size_ == 1) return;
  if (is_wrapper(tensor)) {
    at::Tensor values = writable(tensor);
    return broadcast(values, root);
  }
  const int64_t bytes = rank_ == root ? all_gather_volume(bytes_of(tensor), size_) : 0;
  recorded(CommKind::Broadcast, bytes, &tensor, [&] { backend_->broadcast(tensor, root); });
  if (rank_ != root) bump_version(tensor);
}

void Communicator::scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output,
                             int root) const {
  check_rank(CommKind::ScatterV, "root", root, size_);
  if (rank_ == root) check_count(CommKind::ScatterV, "pieces", pieces.size(), size_);
  if (is_wrapper(output) || (rank_ == root && any_special(pieces))) {
    at::Tensor values = writable(output);
    return scatter_v(readable(pieces), values, root);
  }
  if (size_ == 1) return copy_own(output, pieces[0]);
  const int64_t bytes = rank_ == root ? all_to_all_volume(pieces, rank_) : 0;
  recorded(CommKind::ScatterV, bytes, &output, [&] { backend_->scatter_v(pieces, output, root); });
  bump_version(output);
}

void Communicator::exchange(const std::vector<Message>& sends,
                            const std::vector<Message>& receives) const {
  check_peers(sends, size_);
  check_peers(receives, size_);
  if (std::any_of(sends.begin(), sends.end(),
                  [](const Message& message) { return is_special(message.tensor); }) ||
      std::any_of(receives.begin(), receives.end(),
                  [](const Message& message) { return is_wrapper(message.tensor); })) {
    auto values = sends;
    auto results = receives;
    for (auto& message : values) message.tensor = readable(message.tensor);
    for (auto& message : results) message.tensor = writable(message.tensor);
    return exchange(values, results);
  }
  if (size_ == 1) {
    check_count(CommKind::Exchange, "receives", receives.size(), static_cast<int>(sends.size()));
    for (size_t i = 0; i < sends.size(); ++i) copy_own(receives[i].tensor, sends[i].tensor);
    return;
  }
  recorded(CommKind::Exchange, exchange_volume(sends, rank_),
           sends.empty() ? nullptr : &sends[0].tensor,
           [&] { backend_->exchange(sends, receives); });
  for (const Message& message : receives) bump_version(message.tensor);
}

Pending<std::vector<at::Tensor>> Communicator::start_exchange(std::vector<Message> sends,
                                                              std::vector<Message> receives) const {
  std::vector<at::Tensor> received;
  for (const Message& message : receives) received.push_back(message.tensor);
  if (size_ == 1 || !lane_->open()) {
    exchange(sends, receives);
    return Pending<std::vector<at::Tensor>>([=] { return received; });
  }
  check_peers(sends, size_);
  check_peers(receives, size_);
  for (auto& message : sends) message.tensor = readable(message.tensor);
  for (auto& message : receives) message.tensor = writable(message.tensor);
  const auto dtype = sends.empty() ? c10::ScalarType::Undefined : sends[0].tensor.scalar_type();
  const uint64_t number =
      log_->start({CommKind::Exchange, &name_, exchange_volume(sends, rank_), dtype});
  auto transfer = lane_->start(std::move(sends), std::move(receives));
  return Pending<std::vector<at::Tensor>>(
      [=, communicator = *this, transfer = std::move(transfer)] {
        detail::at_boundary([&] {
          const detail::WithoutForeignLock unlocked;
          try {
            communicator.lane_->wait(*transfer);
          } catch (const CommTimeout&) {
            communicator.log_->print_recent_calls_once(communicator.name_);
            throw;
          }
        });
        communicator.log_->finish(number);
        bump_versions(received);
        return received;
      });
}

std::vector<std::string> Communicator::all_gather_bytes(const std::string& bytes) const {
  if (size_ == 1) return {bytes};
  std::vector<std::string> all;
  recorded(CommKind::AllGatherBytes, all_gather_volume(static_cast<int64_t>(bytes.size()), size_),
           nullptr, [&] { all = backend_->all_gather_bytes(bytes); });
  return all;
}

Communicator Communicator::split(int color, int key, std::string name) const {
  if (size_ == 1) return {backend_, std::move(name), log_};
  std::shared_ptr<CommunicatorBackend> part;
  recorded(CommKind::Split, 0, nullptr, [&] { part = backend_->split(color, key); });
  return {std::move(part), std::move(name), log_};
}

}  // namespace shard
