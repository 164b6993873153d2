// SPDX-License-Identifier: Apache-2.0
#include "random/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <map>
#include <mutex>
#include <tuple>

#include "random/words.h"

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

StreamKind try_out(const Sampler& sampler, const Numbers& numbers) {
  const auto once = at::detail::createCPUGenerator(kSeed);
  const Tensor all = numbers.draw(sampler, kFirst + kRest, once);

  const auto twice = at::detail::createCPUGenerator(kSeed);
  const Tensor first = numbers.draw(sampler, kFirst, twice);
  const Tensor both = at::cat({first, numbers.draw(sampler, kRest, twice)});
  if (at::equal(both, all) && have_equal_states(once, twice)) return StreamKind::Sequential;

  const auto seeding = at::detail::createCPUGenerator(kSeed);
  const uint32_t seed = next_word(seeding);
  const auto rest = generator_giving(seed_after(seed, kFirst));
  const bool is_seeded =
      have_equal_states(once, seeding) &&
      at::equal(numbers.draw(sampler, kFirst, generator_giving(seed)), all.slice(0, 0, kFirst)) &&
      at::equal(numbers.draw(sampler, kRest, rest), all.slice(0, kFirst));
  return is_seeded ? StreamKind::Seeded : StreamKind::Unknown;
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

StreamKind kind_of(const Sampler& sampler, const Numbers& numbers) {
  static std::mutex mutex;
  static auto* known = new std::map<std::tuple<std::string, at::ScalarType, bool>, StreamKind>;
  const auto key = std::make_tuple(sampler.op, numbers.dtype, numbers.in_contiguous_tensors);
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known->find(key); found != known->end()) return found->second;
  }
  const StreamKind kind = try_out(sampler, numbers);
  const std::lock_guard lock(mutex);
  return known->emplace(key, kind).first->second;
}

}  // namespace shard
