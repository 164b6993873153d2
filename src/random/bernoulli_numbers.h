// SPDX-License-Identifier: Apache-2.0
// NOTE [Bernoulli numbers]
// The GPU kernel of bernoulli_(probabilities) tells only how its numbers compared, and the parts of
// a draw have other probabilities. Its thread t makes the numbers 4 t to 4 t + 3 of one offset of
// its Philox sequence, however many there are, so any of them can be had by itself. A trial
// compares with the kernel.
#pragma once

#include <functional>

#include "random/runs.h"
#include "random/sampler.h"

namespace shard {

/// The numbers at the places in the runs, contiguous, of a draw at the generator's state.
at::Tensor bernoulli_numbers(const Runs& runs, const at::Generator& generator, at::Device device);

/// Tensor::bernoulli_(probabilities), of floats.
using BernoulliKernel =
    std::function<at::Tensor(const at::Tensor& probabilities, const at::Generator& generator)>;
/// By what the kernel moves a generator on, whatever it draws; 0: the numbers are not those above.
uint64_t taken_by_bernoulli(const BernoulliKernel& kernel, const at::Generator& generator,
                            at::Device device);

}  // namespace shard
