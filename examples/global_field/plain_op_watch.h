// SPDX-License-Identifier: Apache-2.0
// Watches every LibTorch op of the calling thread, forward and backward, and notes whether any of
// them met a tensor whose key set holds one of the two dispatch keys of a ShardTensor.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>

namespace global_field {

class PlainOpWatch {
 public:
  PlainOpWatch();
  ~PlainOpWatch();
  PlainOpWatch(const PlainOpWatch&) = delete;
  PlainOpWatch& operator=(const PlainOpWatch&) = delete;

  /// Raises shard::Error when an op met a ShardTensor, or when no op was seen.
  void require_plain() const;

 private:
  at::CallbackHandle callback_;
};

}  // namespace global_field
