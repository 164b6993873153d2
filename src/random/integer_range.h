// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

namespace shard {

/// How many integers random_(from, to) of a tensor of `dtype` chooses among, as LibTorch counts
/// them before it takes the kernel of one word a number or of two; without `to` all from `from` on,
/// and 0 stands for all of 64 bits.
uint64_t integer_range(int64_t from, std::optional<int64_t> to, at::ScalarType dtype);

}  // namespace shard
