// SPDX-License-Identifier: Apache-2.0
// For patches of random ops: fills a sharded tensor with the numbers that one device draws.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

namespace shard {

/// One of LibTorch's kernels that fill a tensor with random numbers.
struct Sampler {
  std::string op;  ///< with dtype and device it stands for the kernel, which is tried out once
  /// Fills `numbers`, a plain tensor, as at::Tensor::uniform_ does.
  std::function<void(const at::Tensor& numbers, const at::Generator& generator)> fill;
};

/// Fills `self`, a ShardTensor without pending reductions, with the numbers that `sampler` gives
/// one device for the whole tensor, and leaves the generator (undefined: the default one of the
/// tensor's device) as it would be there. Not collective: ranks whose generators have equal states
/// draw parts of the same numbers. Not differentiable. Errors: MissingShardPatch when no part of
/// the draw can be had alone.
void fill_as_one_device(const at::Tensor& self, const Sampler& sampler,
                        const std::optional<at::Generator>& generator = std::nullopt);

/// Fills `self`, a contiguous Float ShardTensor without pending reductions on a GPU, with the
/// numbers in (0, 1] that Tensor::bernoulli_(probabilities) compares there: it gives 1 where a
/// number is not larger than its probability. Else as fill_as_one_device.
void fill_with_numbers_of_bernoulli(const at::Tensor& self,
                                    const std::optional<at::Generator>& generator = std::nullopt);

/// `generator`, or else the default one of `device`.
at::Generator generator_or_default(const std::optional<at::Generator>& generator,
                                   at::Device device);

}  // namespace shard
