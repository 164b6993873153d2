// SPDX-License-Identifier: Apache-2.0
// A GPU that draws random numbers, of a few threads, on the CPU: which word of which Philox
// sequence a number is made of is as in LibTorch's CUDA kernels.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "random/sampler.h"

namespace shard::testing {

/// As CUDAGeneratorImpl: a seed and an offset, in words, that a kernel moves on by multiples of 4.
class PhiloxGenerator final : public c10::GeneratorImpl {
 public:
  explicit PhiloxGenerator(uint64_t seed)
      : GeneratorImpl(at::Device(at::kCUDA, 0), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        seed_(seed) {}
  static at::Generator make(uint64_t seed) { return at::make_generator<PhiloxGenerator>(seed); }

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override { return seed_; }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  void set_state(const c10::TensorImpl& /*state*/) override { TORCH_CHECK(false, "no state"); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { TORCH_CHECK(false, "no state"); }

 private:
  PhiloxGenerator* clone_impl() const override {
    auto* copy = new PhiloxGenerator(seed_);
    copy->offset_ = offset_;
    return copy;
  }
  uint64_t seed_;
  uint64_t offset_ = 0;
};

/// Four words of `thread`'s sequence.
inline std::array<uint32_t, 4> philox(uint64_t seed, uint64_t thread, uint64_t offset) {
  at::Philox4_32 engine(seed, thread, offset / 4);
  return {engine(), engine(), engine(), engine()};
}

struct PhiloxDevice {
  int64_t most_threads = 1024;

  int64_t threads_for(int64_t count) const {
    return std::min(most_threads, (count + 255) / 256 * 256);
  }
  /// Where a kernel that takes `per_turn` numbers of a thread in a turn moves the generator.
  static uint64_t take(const at::Generator& generator, int64_t turns) {
    auto moved = generator;
    const uint64_t offset = moved.get_offset();
    moved.set_offset(offset + 4 * static_cast<uint64_t>(turns));
    return offset;
  }
  /// Calls `write(memory place, words)`. Kernels of one operand: thread t of T makes the numbers t,
  /// t + T, t + 2 T, ... of a turn, `per_turn` of the four words each.
  template <class Write>
  void strided(int64_t count, int64_t per_turn, const at::Generator& generator,
               const Write& write) const {
    if (count == 0) return;
    const int64_t threads = threads_for(count);
    const int64_t size = threads * per_turn;
    const uint64_t offset = take(generator, (count + size - 1) / size);
    for (int64_t turn = 0; turn * size < count; ++turn) {
      for (int64_t thread = 0; thread < threads; ++thread) {
        const auto words = philox(generator.current_seed(), static_cast<uint64_t>(thread),
                                  offset + 4 * static_cast<uint64_t>(turn));
        for (int64_t i = 0; i < per_turn; ++i) {
          const int64_t place = turn * size + i * threads + thread;
          if (place < count) write(place, words, i);
        }
      }
    }
  }
  /// Dropout: thread t makes `vector` numbers side by side, of four words or eight; two of them
  /// leave the other two words. The generator moves on as if every word had made a number.
  template <class Write>
  void side_by_side(int64_t count, int64_t vector, const at::Generator& generator,
                    const Write& write) const {
    if (count == 0) return;
    const int64_t threads = threads_for(count);
    const uint64_t offset = take(generator, (count + threads * 4 - 1) / (threads * 4));
    const int64_t fours = std::max<int64_t>(vector / 4, 1);
    for (int64_t place = 0; place < count; ++place) {
      const int64_t turn = place / (threads * vector);
      const int64_t thread = place / vector % threads;
      const int64_t i = place % vector;
      const auto words = philox(generator.current_seed(), static_cast<uint64_t>(thread),
                                offset + 4 * static_cast<uint64_t>(turn * fours + i / 4));
      write(place, words, i % 4);
    }
  }
};

/// In (0, 1], as cuRAND makes it of a word.
inline float uniform_of(uint32_t word) { return static_cast<float>(word) * 0x1p-32F + 0x1p-33F; }

}  // namespace shard::testing
