// SPDX-License-Identifier: Apache-2.0
#include "random/words.h"

#include <ATen/CPUGeneratorImpl.h>

namespace shard {
namespace {

at::CPUGeneratorImpl& impl_of(const at::Generator& generator) {
  return *static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
}

/// The word of mt19937's state that its output function turns into `word`. The function is four
/// steps y ^= (y shifted) & mask, each undone by repeating it until all bits are reached.
uint32_t state_giving(uint32_t word) {
  uint32_t y = word;
  y ^= y >> 18;
  y ^= (y << 15) & 0xefc60000U;
  uint32_t low = y;
  for (int known = 7; known < 32; known += 7) low = y ^ ((low << 7) & 0x9d2c5680U);
  uint32_t high = low;
  for (int known = 11; known < 32; known += 11) high = low ^ (high >> 11);
  return high;
}

}  // namespace

uint32_t next_word(const at::Generator& generator) {
  auto& impl = impl_of(generator);
  const std::lock_guard lock(impl.mutex_);
  return impl.random();
}

at::Generator generator_giving(uint32_t word) {
  auto generator = at::detail::createCPUGenerator();
  at::mt19937_data_pod state{};
  state.seeded_ = true;
  state.left_ = at::MERSENNE_STATE_N;  // words until the state is renewed
  state.next_ = 0;
  state.state_[0] = state_giving(word);
  at::mt19937 engine;
  engine.set_data(state);
  impl_of(generator).set_engine(engine);
  return generator;
}

uint32_t seed_after(uint32_t seed, int64_t count) {
  constexpr uint64_t kModulus = 0x7fffffff;
  uint64_t x = seed % kModulus;
  if (x == 0) x = 1;
  uint64_t factor = 1132489760;
  for (; count > 0; count /= 2) {
    if (count % 2 == 1) x = x * factor % kModulus;
    factor = factor * factor % kModulus;
  }
  return static_cast<uint32_t>(x);
}

}  // namespace shard
