// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3) on
// tensors: any number of a GPU's generator, by itself.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace shard {

/// Words (32 random bits, as int64) number `lanes` (0 to 3) of the sequences `threads` at a
/// generator's `offset`, a multiple of 4. int64 tensors of equal sizes on any device.
at::Tensor philox_words(uint64_t seed, const at::Tensor& threads, const at::Tensor& lanes,
                        uint64_t offset);

/// As cuRAND makes them of words: floats in (0, 1].
at::Tensor philox_uniforms(const at::Tensor& words);

}  // namespace shard
