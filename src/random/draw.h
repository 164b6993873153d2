// SPDX-License-Identifier: Apache-2.0
// RandomDraw: any part of the random numbers that one device would draw for a whole tensor, without
// making the whole. See NOTE [Streams of random numbers].
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

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
  RandomDraw(WholeTensor whole, Sampler sampler, const at::Generator& generator);

  /// The numbers in `box`, which may be empty; as often as wanted. A sequential sampler costs the
  /// time of the whole draw every time.
  at::Tensor part(const Box& box) const;

 private:
  friend at::Tensor draw_part(WholeTensor whole, Sampler sampler, const at::Generator& generator,
                              const Box& box);
  RandomDraw(WholeTensor whole, Sampler sampler, bool is_in_turns);
  void begin(const at::Generator& generator);
  void begin_turns(const at::Generator& generator);
  at::Tensor collect(const Box& box, const at::Generator& sequential) const;

  WholeTensor whole_;
  Sampler sampler_;
  int64_t total_;
  Numbers numbers_;
  StreamKind kind_;
  std::vector<int64_t> order_;  ///< tensor dims in the order of the stream, outermost first
  uint32_t seed_ = 0;           ///< of a seeded stream
  at::Generator start_;         ///< of a sequential one
  std::optional<DrawInTurns> turns_;
};

/// One part of a draw, in one pass: see RandomDraw.
at::Tensor draw_part(WholeTensor whole, Sampler sampler, const at::Generator& generator,
                     const Box& box);

}  // namespace shard
