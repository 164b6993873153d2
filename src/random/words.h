// SPDX-License-Identifier: Apache-2.0
// The words (32 random bits) of LibTorch's CPU generator, and of the MKL streams that one of them
// seeds.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

namespace shard {

/// The generator's next word; moves it on by one.
uint32_t next_word(const at::Generator& generator);

/// A generator whose next word is `word`. What follows it is arbitrary.
at::Generator generator_giving(uint32_t word);

/// The seed of MKL's MCG31m1 whose stream begins where that of `seed` has given `count` numbers.
uint32_t seed_after(uint32_t seed, int64_t count);

}  // namespace shard
