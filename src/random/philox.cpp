// SPDX-License-Identifier: Apache-2.0
#include "random/philox.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>

#include <array>

namespace shard {
namespace {

using at::Tensor;

constexpr int64_t kWord = 0xFFFFFFFF;
constexpr std::array<int64_t, 2> kMultipliers{0xD2511F53, 0xCD9E8D57};
constexpr std::array<int64_t, 2> kKeySteps{0x9E3779B9, 0xBB67AE85};
constexpr int kRounds = 10;

Tensor low(const Tensor& product) { return product.bitwise_and(kWord); }
Tensor high(const Tensor& product) { return (product.__rshift__(32)).bitwise_and_(kWord); }

}  // namespace

Tensor philox_words(uint64_t seed, const Tensor& threads, const Tensor& lanes, uint64_t offset) {
  std::array<int64_t, 2> key{static_cast<int64_t>(seed & kWord), static_cast<int64_t>(seed >> 32)};
  const uint64_t block = offset / 4;
  std::array<Tensor, 4> counter{at::full_like(threads, static_cast<int64_t>(block & kWord)),
                                at::full_like(threads, static_cast<int64_t>(block >> 32)),
                                low(threads), high(threads)};
  for (int round = 0; round < kRounds; ++round) {
    const Tensor first = counter[0].mul(kMultipliers[0]);  // modulo 2^64, signed or not
    const Tensor second = counter[2].mul(kMultipliers[1]);
    counter = {high(second).bitwise_xor_(counter[1]).bitwise_xor_(key[0]), low(second),
               high(first).bitwise_xor_(counter[3]).bitwise_xor_(key[1]), low(first)};
    for (size_t i = 0; i < 2; ++i) key[i] = (key[i] + kKeySteps[i]) & kWord;
  }
  Tensor words = counter[0];
  for (int64_t lane = 1; lane < 4; ++lane) {
    words = at::where(lanes == lane, counter[static_cast<size_t>(lane)], words);
  }
  return words;
}

Tensor philox_uniforms(const Tensor& words) {
  return words.to(at::kFloat).mul_(0x1p-32).add_(0x1p-33);
}

}  // namespace shard
