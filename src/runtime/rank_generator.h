// SPDX-License-Identifier: Apache-2.0
// Random numbers of thread ranks. LibTorch has one default generator a process; models built on
// several rank threads would race on it and differ. Here every rank has its own, in two steps:
//
// - random ops that are called without a generator get the rank's. A dispatch mode key that
// LibTorch reserves
//   for tests is switched on in rank threads; only ops with a `generator` argument have a kernel
//   there, so all others cost the same as without.
// - while thread ranks run, the process's default generator is replaced by one that hands seeds and
// states
//   through to the calling rank's. So torch::manual_seed, which every rank calls at its own time,
//   seeds that rank and no other.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

namespace shard {

at::Generator make_rank_generator(uint64_t seed);

/// While alive, random ops of this thread draw from the generator of its RankContext.
class RankGeneratorMode {
 public:
  RankGeneratorMode();

 private:
  c10::impl::IncludeDispatchKeyGuard mode_;
};

/// While one is alive, seeding the process's default generator on a rank thread seeds the rank's.
/// Make it before and destroy it after the rank threads.
class DefaultGeneratorRouting {
 public:
  DefaultGeneratorRouting();
  ~DefaultGeneratorRouting();
  DefaultGeneratorRouting(const DefaultGeneratorRouting&) = delete;
  DefaultGeneratorRouting& operator=(const DefaultGeneratorRouting&) = delete;
};

}  // namespace shard
