// SPDX-License-Identifier: Apache-2.0
// Which words of the generator a sampler uses for which number.
//
// NOTE [Streams of random numbers]
// On CPUs they come in two kinds.
// - Sequential: every number is made of the next words of the generator, in the order of memory. A
//   part of them is had by drawing all, block by block, and keeping the part.
// - Seeded: one word of the generator seeds a stream of MKL's, and element i has its i-th number,
//   in the order of indices. Such a stream can be entered anywhere (seed_after), so only the part
//   itself is drawn.
// On GPUs there is one kind, NOTE [Turns] in turns.h.
// Which kind an op is depends on LibTorch's build and on the processor; a trial finds out. An op
// that is of none raises MissingShardPatch.
#pragma once

#include <shard/random.h>

namespace shard {

/// Where a sampler writes. It has other code for tensors that are not contiguous, or that do not
/// begin at a multiple of its vectors.
struct Numbers {
  at::ScalarType dtype = at::kFloat;
  bool in_contiguous_tensors = true;
  at::Device device = at::kCPU;
  int64_t misalignment = 0;  ///< of contiguous tensors, in elements

  /// The next `count` of them, contiguous.
  at::Tensor draw(const Sampler& sampler, int64_t count, const at::Generator& generator) const;
};

enum class StreamKind : uint8_t { Sequential, Seeded, Turns, Unknown };
/// On a CPU.
StreamKind kind_of(const Sampler& sampler, const Numbers& numbers);

}  // namespace shard
