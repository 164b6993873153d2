// SPDX-License-Identifier: Apache-2.0
// Choices of random samples: the same for the same seed on every machine.
#pragma once

#include <ATen/ops/randn.h>

#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

namespace shard::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  /// In [least, most].
  int64_t integer(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(engine_() % static_cast<uint64_t>(most - least + 1));
  }
  bool coin() { return integer(0, 1) == 1; }
  template <class T>
  const T& one_of(const std::vector<T>& values) {
    return values[static_cast<size_t>(integer(0, static_cast<int64_t>(values.size()) - 1))];
  }
  std::vector<int64_t> sizes(int64_t ndim, int64_t least, int64_t most) {
    std::vector<int64_t> result(static_cast<size_t>(ndim));
    for (auto& size : result) size = integer(least, most);
    return result;
  }
  /// Normal values; now and then not contiguous or channels last.
  at::Tensor tensor(const std::vector<int64_t>& sizes) {
    at::Tensor x = at::randn(sizes, at::kDouble);
    const auto ndim = static_cast<int64_t>(sizes.size());
    if (ndim == 4 && integer(0, 3) == 0) return x.contiguous(at::MemoryFormat::ChannelsLast);
    if (ndim >= 2 && integer(0, 3) == 0) return x.transpose(0, 1).contiguous().transpose(0, 1);
    return x;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace shard::testing
