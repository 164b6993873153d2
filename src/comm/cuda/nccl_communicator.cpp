// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/nccl_communicator.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/view_as_real.h>
#include <c10/cuda/CUDAGuard.h>
#include <shard/environment.h>

#include <cstring>
#include <exception>
#include <map>
#include <thread>

#include "comm/copy.h"
#include "comm/cuda/nccl_call.h"
#include "comm/reduce.h"
#include "comm/texts.h"
#include "comm/volume.h"

namespace shard {
namespace {

using at::Tensor;
using namespace std::chrono_literals;

/// The element type in which sums are formed: half types in float, what NCCL cannot sum in the next
/// larger type that it can.
at::ScalarType summing_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
    case at::kBFloat16:
      return at::kFloat;
    case at::kBool:
      return at::kByte;
    case at::kShort:
      return at::kInt;
    default:
      return dtype;
  }
}

ncclDataType_t nccl_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kByte:
      return ncclUint8;
    case at::kChar:
      return ncclInt8;
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    default:
      raise<CommError>("nccl", "dtype: got ", dtype,
                       "; expected one that NCCL reduces. Convert the tensor first.");
  }
}

/// The sum of booleans is whether any is true.
ncclRedOp_t nccl_op(ReduceOp op, at::ScalarType dtype) {
  if (op == ReduceOp::Min) return ncclMin;
  if (op == ReduceOp::Max || dtype == at::kBool) return ncclMax;
  return ncclSum;  // Avg divides afterwards, as the other backends do
}

void combine(Tensor& sum, const Tensor& part, ReduceOp op, at::ScalarType dtype) {
  if (op == ReduceOp::Min) {
    sum = at::minimum(sum, part);
  } else if (op == ReduceOp::Max || dtype == at::kBool) {
    sum = at::maximum(sum, part);
  } else {
    sum.add_(part);
  }
}

std::vector<Message> messages_to_all(const std::vector<Tensor>& tensors) {
  std::vector<Message> messages;
  for (size_t r = 0; r < tensors.size(); ++r) {
    messages.push_back({static_cast<int>(r), tensors[r]});
  }
  return messages;
}

void check_same(const Tensor& to, const Tensor& from) {
  check<CommMismatch>(to.sizes() == from.sizes() && to.scalar_type() == from.scalar_type(), "nccl",
                      "own piece: got ", dtype_and_sizes(from), "; expected ", dtype_and_sizes(to),
                      ". Give both the same shape.");
}

/// Rank 0's id, known to all. Collective.
ncclUniqueId common_id(CommunicatorBackend& host) {
  ncclUniqueId id{};
  std::string bytes;
  if (host.rank() == 0) {
    check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    bytes.assign(id.internal, sizeof id.internal);
  }
  const std::string from_root = host.all_gather_bytes(bytes).front();
  std::memcpy(id.internal, from_root.data(), sizeof id.internal);
  return id;
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<CommunicatorBackend> host, c10::Device device)
    : HostBackend(std::move(host)), device_(device) {
  const c10::cuda::CUDAGuard guard(device_);
  const ncclUniqueId id = common_id(this->host());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // a rank that does not come is noticed by us, not waited for by NCCL
  check_nccl(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config), "ncclCommInitRank");
  settle("ncclCommInitRank");
  watch_ = std::make_unique<NcclWatch>(
      comm_, device_.index(), c10::str("rank ", rank(), " of ", size()), environment().timeout);
}

NcclCommunicator::~NcclCommunicator() {
  // After an error what is under way may never finish.
  if (watch_ && std::uncaught_exceptions() == 0) watch_->wait_until_idle();
  watch_.reset();
  if (comm_ != nullptr) ncclCommAbort(comm_);
}

void NcclCommunicator::settle(const char* call) {
  const auto until = std::chrono::steady_clock::now() + environment().timeout;
  for (;;) {
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(comm_, &state), call);
    check_nccl(state, call);
    if (state == ncclSuccess) return;
    check<CommTimeout>(std::chrono::steady_clock::now() < until, "nccl", call,
                       ": not all ranks have come; expected the same call on every rank. Look "
                       "for a rank that failed, or raise SHARD_TIMEOUT.");
    std::this_thread::yield();
  }
}

Fingerprint NcclCommunicator::start(CommKind kind) { return {++sequence_, kind}; }

void NcclCommunicator::agree(const Fingerprint& fingerprint) {
  if (!environment().check_nccl) return;
  const auto& words = fingerprint.words();
  std::string bytes(sizeof words, '\0');
  std::memcpy(bytes.data(), words.data(), sizeof words);
  std::map<std::string, std::vector<int>> calls;
  const auto all = host().all_gather_bytes(bytes);
  for (size_t r = 0; r < all.size(); ++r) {
    Fingerprint::Words theirs{};
    std::memcpy(theirs.data(), all[r].data(), sizeof theirs);
    calls[Fingerprint(theirs).text()].push_back(static_cast<int>(r));
  }
  check<CommMismatch>(calls.size() == 1, name_of(fingerprint.kind()),
                      disagreement_text(sequence_, calls));
}

void NcclCommunicator::check_device(const Tensor& tensor, CommKind kind) const {
  check<CommError>(tensor.device() == device_, name_of(kind), "device: got a tensor on ",
                   tensor.device(), "; expected ", device_, ", this rank's. Move it there first.");
}

void NcclCommunicator::all_reduce(Tensor& tensor, ReduceOp op) {
  check_device(tensor, CommKind::AllReduce);
  check_reducible("all_reduce", tensor.scalar_type(), op);
  agree(start(CommKind::AllReduce).with_tensor(tensor).with_op(op));
  if (tensor.numel() == 0) return;
  const at::AutoDispatchBelowADInplaceOrView plain;
  const c10::cuda::CUDAGuard guard(device_);
  const at::ScalarType dtype = tensor.scalar_type();
  const Tensor dense = packed(tensor);
  const Tensor real = dense.is_complex() ? at::view_as_real(dense) : dense;
  const Tensor sum = real.to(summing_type(real.scalar_type()));
  const auto stream = at::cuda::getCurrentCUDAStream();
  check_nccl(
      ncclAllReduce(sum.const_data_ptr(), sum.mutable_data_ptr(), static_cast<size_t>(sum.numel()),
                    nccl_type(sum.scalar_type()), nccl_op(op, dtype), comm_, stream),
      "ncclAllReduce");
  settle("ncclAllReduce");
  watch_->add("all_reduce", stream);
  if (op == ReduceOp::Avg) sum.div_(size());
  if (!sum.is_same(real)) real.copy_(sum);
  if (!dense.is_same(tensor)) tensor.copy_(dense);
  bytes_sent_ += all_reduce_volume(tensor, rank(), size());
}

void NcclCommunicator::move(const std::vector<Message>& sends, const std::vector<Message>& receives,
                            const Fingerprint& fingerprint) {
  agree(fingerprint);
  const at::AutoDispatchBelowADInplaceOrView plain;
  const c10::cuda::CUDAGuard guard(device_);
  const auto stream = at::cuda::getCurrentCUDAStream();
  std::vector<Tensor> own, dense, landed;
  for (const Message& message : sends) {
    check_device(message.tensor, fingerprint.kind());
    if (message.peer == rank()) own.push_back(message.tensor);
    dense.push_back(message.peer == rank() ? Tensor() : packed(message.tensor));
  }
  for (const Message& message : receives) {
    const bool is_direct = message.peer == rank() || message.tensor.is_contiguous();
    landed.push_back(is_direct ? message.tensor
                               : at::empty(message.tensor.sizes(), message.tensor.options()));
  }
  check_nccl(ncclGroupStart(), "ncclGroupStart");
  for (size_t i = 0; i < sends.size(); ++i) {
    if (sends[i].peer == rank() || dense[i].numel() == 0) continue;
    check_nccl(ncclSend(dense[i].const_data_ptr(), static_cast<size_t>(bytes_of(dense[i])),
                        ncclUint8, sends[i].peer, comm_, stream),
               "ncclSend");
    bytes_sent_ += bytes_of(dense[i]);
  }
  for (size_t i = 0; i < receives.size(); ++i) {
    if (receives[i].peer == rank() || landed[i].numel() == 0) continue;
    check_nccl(ncclRecv(landed[i].mutable_data_ptr(), static_cast<size_t>(bytes_of(landed[i])),
                        ncclUint8, receives[i].peer, comm_, stream),
               "ncclRecv");
  }
  check_nccl(ncclGroupEnd(), "ncclGroupEnd");
  settle("ncclGroupEnd");
  watch_->add(name_of(fingerprint.kind()), stream);
  size_t next_own = 0;
  for (size_t i = 0; i < receives.size(); ++i) {
    const Tensor& to = receives[i].tensor;
    if (receives[i].peer == rank()) {
      check<CommMismatch>(next_own < own.size(), name_of(fingerprint.kind()),
                          "messages to oneself: got ", own.size(),
                          "; expected more. List each on "
                          "both sides.");
      check_same(to, own[next_own]);
      to.copy_(own[next_own++]);
    } else if (!landed[i].is_same(to)) {
      to.copy_(landed[i]);
    }
  }
}

void NcclCommunicator::all_gather_v(const Tensor& piece, const std::vector<Tensor>& outputs) {
  const auto fingerprint = start(CommKind::AllGatherV).with_dtype(piece.scalar_type());
  const std::vector<Tensor> pieces(outputs.size(), packed(piece));
  move(messages_to_all(pieces), messages_to_all(outputs), fingerprint);
}

void NcclCommunicator::all_to_all_v(const std::vector<Tensor>& sends,
                                    const std::vector<Tensor>& receives) {
  move(messages_to_all(sends), messages_to_all(receives), start(CommKind::AllToAllV));
}

void NcclCommunicator::reduce_scatter_v(const std::vector<Tensor>& pieces, Tensor& output,
                                        ReduceOp op) {
  const at::ScalarType dtype = output.scalar_type();
  check_reducible("reduce_scatter_v", dtype, op);
  std::vector<Tensor> parts;
  for (int r = 0; r < size(); ++r) parts.push_back(at::empty(output.sizes(), output.options()));
  move(messages_to_all(pieces), messages_to_all(parts),
       start(CommKind::ReduceScatterV).with_dtype(dtype).with_op(op));
  const at::AutoDispatchBelowADInplaceOrView plain;
  const c10::cuda::CUDAGuard guard(device_);
  Tensor sum = parts[0].to(summing_type(dtype));
  for (size_t r = 1; r < parts.size(); ++r) {
    combine(sum, parts[r].to(sum.scalar_type()), op, dtype);  // in rank order
  }
  if (op == ReduceOp::Avg) sum.div_(size());
  output.copy_(sum);
}

void NcclCommunicator::broadcast(Tensor& tensor, int root) {
  std::vector<Message> sends, receives;
  if (rank() == root) {
    const Tensor dense = packed(tensor);
    for (int r = 0; r < size(); ++r) {
      if (r != root) sends.push_back({r, dense});
    }
  } else {
    receives.push_back({root, tensor});
  }
  move(sends, receives, start(CommKind::Broadcast).with_tensor(tensor).with_root(root));
}

void NcclCommunicator::scatter_v(const std::vector<Tensor>& pieces, Tensor& output, int root) {
  const auto sends = rank() == root ? messages_to_all(pieces) : std::vector<Message>();
  move(sends, {{root, output}},
       start(CommKind::ScatterV).with_dtype(output.scalar_type()).with_root(root));
}

void NcclCommunicator::exchange(const std::vector<Message>& sends,
                                const std::vector<Message>& receives) {
  move(sends, receives, start(CommKind::Exchange));
}

std::shared_ptr<CommunicatorBackend> NcclCommunicator::split(int color, int key) {
  auto part = host().split(color, key);
  if (part->size() == 1) return part;  // never asked to move a tensor
  return std::make_shared<NcclCommunicator>(std::move(part), device_);
}

}  // namespace shard
