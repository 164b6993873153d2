// SPDX-License-Identifier: Apache-2.0
// Fingerprint: what a rank believes the current collective to be. It travels with every operation;
// ranks whose fingerprints differ raise CommMismatch instead of exchanging garbage.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/communicator.h>

#include <array>
#include <string>

#include "comm/comm_kind.h"

namespace shard {

class Fingerprint {
 public:
  /// Sizes beyond the sixth are kept as a hash.
  static constexpr size_t kSizes = 6;
  static constexpr size_t kWords = kSizes + 3;
  using Words = std::array<uint64_t, kWords>;

  Fingerprint() = default;
  explicit Fingerprint(const Words& words) : words_(words) {}
  /// `sequence`: how many operations this rank has begun on the communicator.
  Fingerprint(uint64_t sequence, CommKind kind);
  /// For collectives whose pieces may differ in sizes.
  Fingerprint& with_dtype(at::ScalarType dtype);
  Fingerprint& with_tensor(const at::Tensor& tensor);
  Fingerprint& with_op(ReduceOp op);
  Fingerprint& with_root(int root);

  const Words& words() const { return words_; }
  uint64_t sequence() const { return words_[0]; }
  CommKind kind() const { return static_cast<CommKind>(words_[1] & 0xff); }
  bool operator==(const Fingerprint&) const = default;
  /// "all_reduce (sum) of Float [4, 8]"
  std::string text() const;
  /// "Float [4, 8]"
  std::string tensor_text() const;

 private:
  Words words_{};
};

/// "Float [4, 8]"
std::string dtype_and_sizes(const at::Tensor& tensor);

}  // namespace shard
