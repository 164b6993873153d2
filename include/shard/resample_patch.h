// SPDX-License-Identifier: Apache-2.0
// What the patches of separable image filters share (bicubic, antialiased): each rank makes the
// output rows whose place in the input it owns. Along a cut dim rows are selected and weighted
// here, with the numbers that LibTorch's op has for the whole dim; its op does the other dim.
// Selecting comes last where that is less work.
#pragma once

#include <shard/box_patch.h>

#include <functional>
#include <vector>

namespace shard {

/// An output row is the sum of these input rows, in ascending order, times the weights.
struct Taps {
  std::vector<int64_t> rows;  ///< at least one
  std::vector<double> weights;
};

/// A call of such an op for images (batch, channels, height, width).
struct Resampling {
  const char* op;
  c10::IntArrayRef size;  ///< of the output's spatial dims
  /// LibTorch's op itself.
  std::function<at::Tensor(const at::Tensor& x)> whole;
  /// The same only along the dims that are not cut.
  std::function<at::Tensor(const at::Tensor& x, const BoxInput& input)> uncut_dims;
  /// Of output row `o` along spatial dim `i` of `in` rows, for rows that are weighted in `type`.
  std::function<Taps(size_t i, int64_t in, int64_t o, at::ScalarType type)> taps;
  bool weighs_only_floating = false;  ///< other dtypes that are cut in space are refused
};
/// Collective where an output row is made of rows of several ranks.
at::Tensor resample(const Resampling& call, const at::Tensor& x);

}  // namespace shard
