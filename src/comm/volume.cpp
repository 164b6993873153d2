// SPDX-License-Identifier: Apache-2.0
#include "comm/volume.h"

#include <algorithm>

namespace shard {

Slice reduction_slice(int64_t numel, int rank, int size) {
  constexpr int64_t kUnit = 64;
  const int64_t units = (numel + kUnit - 1) / kUnit;
  const auto boundary = [&](int64_t r) { return std::min(numel, units * r / size * kUnit); };
  return {boundary(rank), boundary(rank + 1)};
}

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

int64_t all_reduce_volume(const at::Tensor& tensor, int rank, int size) {
  const int64_t bytes = bytes_of(tensor);
  if (bytes <= kSmallReduceBytes) return bytes * (size - 1);
  const int64_t own = reduction_slice(tensor.numel(), rank, size).size() *
                      static_cast<int64_t>(tensor.element_size());
  return bytes - own + own * (size - 1);  // the others' slices to them, then my sums to everybody
}

int64_t all_gather_volume(int64_t piece_bytes, int size) { return piece_bytes * (size - 1); }

int64_t all_to_all_volume(const std::vector<at::Tensor>& pieces, int rank) {
  int64_t bytes = 0;
  for (size_t r = 0; r < pieces.size(); ++r) {
    if (r != static_cast<size_t>(rank)) bytes += bytes_of(pieces[r]);
  }
  return bytes;
}

int64_t exchange_volume(const std::vector<Message>& sends, int rank) {
  int64_t bytes = 0;
  for (const Message& message : sends) {
    if (message.peer != rank) bytes += bytes_of(message.tensor);
  }
  return bytes;
}

}  // namespace shard
