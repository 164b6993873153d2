// SPDX-License-Identifier: Apache-2.0
// How the collectives cut their work, and hence how many bytes a rank sends. The same for every
// backend, so CommCounter can be computed beforehand and compared with what the transport counted.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/communicator.h>

#include <cstdint>
#include <vector>

#include "comm/comm_kind.h"

namespace shard {

/// Up to this size all_reduce gathers everything everywhere and sums locally (one round); above,
/// each rank sums one slice and hands it out (two rounds, less traffic). Both sum in rank order:
/// same bits.
inline constexpr int64_t kSmallReduceBytes = 8192;

struct Slice {
  int64_t begin;
  int64_t end;
  int64_t size() const { return end - begin; }
};
/// The slice of `numel` elements that `rank` of `size` ranks reduces; boundaries at multiples of 64
/// elements, so that two ranks never write one cache line.
Slice reduction_slice(int64_t numel, int rank, int size);

int64_t bytes_of(const at::Tensor& tensor);
/// Bytes that `rank` sends to other ranks.
int64_t all_reduce_volume(const at::Tensor& tensor, int rank, int size);
int64_t all_gather_volume(int64_t piece_bytes, int size);
int64_t all_to_all_volume(const std::vector<at::Tensor>& pieces, int rank);
int64_t exchange_volume(const std::vector<Message>& sends, int rank);

}  // namespace shard
