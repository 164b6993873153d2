// SPDX-License-Identifier: Apache-2.0
// Samplers: LibTorch's kernels that fill a tensor with random numbers, and which words of the
// generator they use for which element.
//
// NOTE [Streams of random numbers]
// On CPUs they come in two kinds.
// - Sequential: every number is made of the next words of the generator, in the order of memory. A
//   part of them is had by drawing all, block by block, and keeping the part.
// - Seeded: one word of the generator seeds a stream of MKL's, and element i has its i-th number,
// in
//   the order of indices. Such a stream can be entered anywhere (seed_after), so only the part
//   itself is drawn.
// Which kind an op is depends on LibTorch's build and on the processor; a trial of a few numbers
// finds out. An op that is neither raises MissingShardPatch.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace shard {

enum class StreamKind : uint8_t { Sequential, Seeded, Unknown };

struct Sampler {
  std::string op;  ///< with the dtype it stands for the kernel: the kind is found out once for both
  /// Fills `numbers`, as at::Tensor::uniform_ does.
  std::function<void(const at::Tensor& numbers, const at::Generator& generator)> fill;
};

/// Where a sampler writes. It has other code for tensors that are not contiguous.
struct Numbers {
  at::ScalarType dtype = at::kFloat;
  bool in_contiguous_tensors = true;

  /// The next `count` of them, contiguous.
  at::Tensor draw(const Sampler& sampler, int64_t count, const at::Generator& generator) const;
};

StreamKind kind_of(const Sampler& sampler, const Numbers& numbers);

}  // namespace shard
