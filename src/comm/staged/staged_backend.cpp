// SPDX-License-Identifier: Apache-2.0
#include "comm/staged/staged_backend.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

namespace shard {
namespace {

using at::Tensor;

/// A copy on the CPU, in row-major order.
Tensor staged(const Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView plain;
  Tensor copy = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  copy.copy_(tensor);  // waits for the device
  return copy;
}

std::vector<Tensor> staged(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  copies.reserve(tensors.size());
  for (const Tensor& tensor : tensors) copies.push_back(staged(tensor));
  return copies;
}

/// Where what belongs into `tensor` arrives.
Tensor landing(const Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
}

std::vector<Tensor> landings(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> places;
  places.reserve(tensors.size());
  for (const Tensor& tensor : tensors) places.push_back(landing(tensor));
  return places;
}

void deliver(const Tensor& to, const Tensor& from) {
  const at::AutoDispatchBelowADInplaceOrView plain;
  to.copy_(from);
}

void deliver(const std::vector<Tensor>& to, const std::vector<Tensor>& from) {
  for (size_t i = 0; i < to.size(); ++i) deliver(to[i], from[i]);
}

}  // namespace

StagedBackend::StagedBackend(std::shared_ptr<CommunicatorBackend> host)
    : HostBackend(std::move(host)), name_(c10::str(this->host().backend_name(), ", staged")) {}

void StagedBackend::all_reduce(Tensor& tensor, ReduceOp op) {
  Tensor copy = staged(tensor);
  host().all_reduce(copy, op);
  deliver(tensor, copy);
}

void StagedBackend::all_gather_v(const Tensor& piece, const std::vector<Tensor>& outputs) {
  const auto places = landings(outputs);
  host().all_gather_v(staged(piece), places);
  deliver(outputs, places);
}

void StagedBackend::reduce_scatter_v(const std::vector<Tensor>& pieces, Tensor& output,
                                     ReduceOp op) {
  Tensor place = landing(output);
  host().reduce_scatter_v(staged(pieces), place, op);
  deliver(output, place);
}

void StagedBackend::all_to_all_v(const std::vector<Tensor>& sends,
                                 const std::vector<Tensor>& receives) {
  const auto places = landings(receives);
  host().all_to_all_v(staged(sends), places);
  deliver(receives, places);
}

void StagedBackend::broadcast(Tensor& tensor, int root) {
  Tensor copy = rank() == root ? staged(tensor) : landing(tensor);
  host().broadcast(copy, root);
  if (rank() != root) deliver(tensor, copy);
}

void StagedBackend::scatter_v(const std::vector<Tensor>& pieces, Tensor& output, int root) {
  Tensor place = landing(output);
  host().scatter_v(rank() == root ? staged(pieces) : pieces, place, root);
  deliver(output, place);
}

void StagedBackend::exchange(const std::vector<Message>& sends,
                             const std::vector<Message>& receives) {
  auto out = sends;
  auto in = receives;
  for (Message& message : out) message.tensor = staged(message.tensor);
  for (Message& message : in) message.tensor = landing(message.tensor);
  host().exchange(out, in);
  for (size_t i = 0; i < in.size(); ++i) deliver(receives[i].tensor, in[i].tensor);
}

}  // namespace shard
