// SPDX-License-Identifier: Apache-2.0
#include "random/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <string>
#include <tuple>

#include "random/trial_sampler.h"
#include "random/tried_once.h"

namespace shard {
namespace {

using at::Generator;
using at::Tensor;

/// LibTorch's normal_ makes 16 numbers at a time: the parts of a trial are multiples of that.
constexpr int64_t kFirst = 32;
constexpr int64_t kRest = 64;
constexpr uint64_t kSeed = 20240229;

bool have_equal_states(const Generator& a, const Generator& b) {
  return at::equal(a.get_state(), b.get_state());
}

bool try_out(const Sampler& sampler, const Numbers& numbers) {
  const auto once = at::detail::createCPUGenerator(kSeed);
  const Tensor all = numbers.draw(sampler, kFirst + kRest, once);
  const auto twice = at::detail::createCPUGenerator(kSeed);
  const Tensor first = numbers.draw(sampler, kFirst, twice);
  const Tensor both = at::cat({first, numbers.draw(sampler, kRest, twice)});
  return at::equal(both, all) && have_equal_states(once, twice);
}

}  // namespace

Tensor Numbers::draw(const Sampler& sampler, int64_t count, const Generator& generator) const {
  const auto options = at::TensorOptions(device).dtype(dtype);
  const Tensor numbers =
      in_contiguous_tensors
          ? at::empty({misalignment + count}, options).narrow(0, misalignment, count)
          : at::empty({count, 2}, options).select(1, 0);
  sampler.fill(numbers, generator);
  return numbers.contiguous();
}

bool is_sequential(const Sampler& sampler, const Numbers& numbers) {
  using Key = std::tuple<std::string, at::ScalarType, bool>;
  static auto* found = new TriedOnce<Key, bool>;
  return found->find({sampler.op, numbers.dtype, numbers.in_contiguous_tensors},
                     [&] { return try_out(trial_sampler(sampler), numbers); });
}

}  // namespace shard
