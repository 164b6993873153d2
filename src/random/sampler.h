// SPDX-License-Identifier: Apache-2.0
// Which words of the generator a sampler uses for which number.
//
// NOTE [Streams of random numbers]
// On CPUs every number is made of the next words of the generator, in the order of memory. A part
// of them is had by drawing all, block by block, and keeping the part. On GPUs: NOTE [Turns] in
// turns.h. A trial finds out whether an op does so; one that does not raises MissingShardPatch.
#pragma once

#include <shard/fill.h>

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

/// `total` numbers from the state of `generator` on.
struct Draw {
  Sampler sampler;
  Numbers numbers;
  int64_t total = 0;
  at::Generator generator;
};

/// Of a sampler on a CPU, found by a trial, once for op, dtype and place.
bool is_sequential(const Sampler& sampler, const Numbers& numbers);

}  // namespace shard
