// SPDX-License-Identifier: Apache-2.0
#include "comm/fingerprint.h"

#include <c10/core/ScalarType.h>
#include <c10/util/StringUtil.h>

namespace shard {
namespace {

// The second word: kind | dtype + 1 | op + 1 | root + 1 | number of dims + 1. Zero: not given.
enum Shift : unsigned { kKind = 0, kDtype = 8, kOp = 16, kRoot = 24, kDims = 56 };

uint64_t field(uint64_t word, Shift shift, uint64_t mask = 0xff) { return (word >> shift) & mask; }

uint64_t mix(uint64_t hash, int64_t value) {
  return (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3ULL + 1;
}

}  // namespace

Fingerprint::Fingerprint(uint64_t sequence, CommKind kind) {
  words_[0] = sequence;
  words_[1] = static_cast<uint64_t>(kind) << kKind;
}

Fingerprint& Fingerprint::with_dtype(at::ScalarType dtype) {
  words_[1] |= (static_cast<uint64_t>(dtype) + 1) << kDtype;
  return *this;
}

Fingerprint& Fingerprint::with_tensor(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i < kSizes) {
      words_[2 + i] = static_cast<uint64_t>(sizes[i]);
    } else {
      words_.back() = mix(words_.back(), sizes[i]);
    }
  }
  words_[1] |= (static_cast<uint64_t>(sizes.size()) + 1) << kDims;
  return with_dtype(tensor.scalar_type());
}

Fingerprint& Fingerprint::with_op(ReduceOp op) {
  words_[1] |= (static_cast<uint64_t>(op) + 1) << kOp;
  return *this;
}

Fingerprint& Fingerprint::with_root(int root) {
  words_[1] |= static_cast<uint64_t>(static_cast<uint32_t>(root + 1)) << kRoot;
  return *this;
}

std::string Fingerprint::text() const {
  std::string text = name_of(kind());
  if (const auto op = field(words_[1], kOp)) {
    text += c10::str(" (", name_of(static_cast<ReduceOp>(op - 1)), ")");
  }
  if (field(words_[1], kDtype) != 0) text += " of " + tensor_text();
  if (const auto root = field(words_[1], kRoot, 0xffffffff)) {
    text += c10::str(" from root ", static_cast<int64_t>(root) - 1);
  }
  return text;
}

std::string Fingerprint::tensor_text() const {
  std::string text;
  if (const auto dtype = field(words_[1], kDtype)) {
    text = c10::toString(static_cast<at::ScalarType>(dtype - 1));
  }
  if (const auto dims = field(words_[1], kDims)) {
    const auto* sizes = reinterpret_cast<const int64_t*>(&words_[2]);
    text += c10::str(" ", at::IntArrayRef(sizes, std::min<size_t>(dims - 1, kSizes)));
    if (dims - 1 > kSizes) text += c10::str(" and ", dims - 1 - kSizes, " more dims");
  }
  return text;
}

std::string dtype_and_sizes(const at::Tensor& tensor) {
  return c10::str(c10::toString(tensor.scalar_type()), " ", tensor.sizes());
}

}  // namespace shard
