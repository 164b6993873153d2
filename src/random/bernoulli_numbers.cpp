// SPDX-License-Identifier: Apache-2.0
#include "random/bernoulli_numbers.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <vector>

#include "random/philox.h"

namespace shard {
namespace {

using at::Generator;
using at::Tensor;

constexpr int64_t kAtOnce = int64_t{1}
                            << 20;  // for memory: a number takes some 200 bytes meanwhile

Tensor numbers_at(const Tensor& places, const Generator& generator) {
  const Tensor words = philox_words(generator.current_seed(), places.__rshift__(2),
                                    places.bitwise_and(3), generator.get_offset());
  return philox_uniforms(words);
}

}  // namespace

Tensor bernoulli_numbers(const Runs& runs, const Generator& generator, at::Device device) {
  const Tensor result =
      at::empty({runs.count(), runs.length()}, at::TensorOptions(device).dtype(at::kFloat));
  const int64_t width = std::min(runs.length(), kAtOnce);
  const int64_t height = std::max<int64_t>(1, kAtOnce / width);
  const auto places = at::TensorOptions(device).dtype(at::kLong);
  for (int64_t run = 0; run < runs.count(); run += height) {
    std::vector<int64_t> begins;
    for (int64_t i = run; i < std::min(runs.count(), run + height); ++i) {
      begins.push_back(runs.begin(i));
    }
    const auto rows = static_cast<int64_t>(begins.size());
    const Tensor begin = at::tensor(begins, at::kLong).to(device).unsqueeze(1);
    for (int64_t from = 0; from < runs.length(); from += width) {
      const int64_t to = std::min(runs.length(), from + width);
      result.narrow(0, run, rows)
          .narrow(1, from, to - from)
          .copy_(numbers_at(begin + at::arange(from, to, places), generator));
    }
  }
  return result.flatten();
}

uint64_t taken_by_bernoulli(const BernoulliKernel& kernel, const Generator& generator,
                            at::Device device) {
  Generator trial = generator.clone();
  uint64_t taken = 0;
  for (const int64_t count : {1, 5003, 1 << 20}) {  // the last one in more threads than run at once
    trial.set_offset(8);
    const Runs all({count}, {0}, {count});
    const Tensor numbers = bernoulli_numbers(all, trial, device);
    const Tensor probabilities =
        at::linspace(0, 1, count, at::TensorOptions(device).dtype(at::kFloat));
    const Tensor drawn = kernel(probabilities, trial);
    const uint64_t moved = trial.get_offset() - 8;
    if (!at::equal(drawn, numbers.le(probabilities).to(drawn.scalar_type()))) return 0;
    if (taken != 0 && moved != taken) return 0;
    taken = moved;
  }
  return taken;
}

}  // namespace shard
