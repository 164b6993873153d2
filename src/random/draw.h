// SPDX-License-Identifier: Apache-2.0
// RandomDraw: any part of the random numbers that one device would draw for a whole tensor, without
// making the whole. See NOTE [Streams of random numbers].
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <variant>

#include "random/sequential_draw.h"
#include "random/turns.h"
#include "tensor/grid.h"

namespace shard {

/// The geometry of the whole tensor.
struct WholeTensor {
  Shape sizes;
  Shape strides;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

class RandomDraw {
 public:
  /// Takes from `generator` what the whole draw takes. Not collective: ranks whose generators have
  /// equal states draw the same numbers. Errors: MissingShardPatch for a sampler of another kind.
  RandomDraw(WholeTensor whole, const Sampler& sampler, const at::Generator& generator);

  /// The numbers in `box`, which may be empty; as often as wanted. On a CPU it costs the time of
  /// the whole draw every time.
  at::Tensor part(const Box& box) const;

  using Stream = std::variant<SequentialDraw, DrawInTurns>;

 private:
  WholeTensor whole_;
  Stream stream_;
};

/// One part of a draw, in one pass: see RandomDraw.
at::Tensor draw_part(const WholeTensor& whole, const Sampler& sampler,
                     const at::Generator& generator, const Box& box);

}  // namespace shard
