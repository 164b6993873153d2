// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <shard/error.h>
#include <shard/primitives.h>

#include "random/bernoulli_numbers.h"
#include "random/draw.h"
#include "random/tried_once.h"
#include "tensor/grid.h"

namespace shard {

using at::Tensor;

namespace {

/// Found by a trial, once for a device; 0: a part of a draw cannot be had.
uint64_t taken_by_bernoulli_on(at::Device device, const at::Generator& generator) {
  const auto kernel = [](const Tensor& probabilities, const at::Generator& trial) {
    return at::empty_like(probabilities).bernoulli_(probabilities, trial);
  };
  static auto* taken = new TriedOnce<std::string, uint64_t>;
  return taken->find(device.str(), [&] { return taken_by_bernoulli(kernel, generator, device); });
}

}  // namespace

at::Generator generator_or_default(const std::optional<at::Generator>& generator,
                                   at::Device device) {
  if (generator && generator->defined()) return *generator;
  return at::globalContext().defaultGenerator(device);
}

void fill_part(const Tensor& own, const Tensor& whole, const Sampler& sampler,
               const at::Generator& generator) {
  // Ranks that draw nothing refuse parameters that are not valid, as the others do.
  sampler.fill(at::empty({0}, own.options()), generator.clone());
  const Grid grid = Grid::of(whole);
  const WholeTensor geometry{{whole.sizes().begin(), whole.sizes().end()},
                             {whole.strides().begin(), whole.strides().end()},
                             whole.scalar_type(),
                             own.device()};
  own.copy_(draw_part(geometry, sampler, generator, grid.box(grid.mesh.rank())));
}

void fill_as_one_device(const Tensor& self, const Sampler& sampler,
                        const std::optional<at::Generator>& generator) {
  const Tensor& own = innermost(self);
  if (self.numel() == 0) return;
  fill_part(own, self, sampler, generator_or_default(generator, own.device()));
}

void fill_with_numbers_of_bernoulli(const Tensor& self,
                                    const std::optional<at::Generator>& generator) {
  const Tensor& own = innermost(self);
  if (self.numel() == 0) return;
  auto from = generator_or_default(generator, own.device());
  const uint64_t taken = taken_by_bernoulli_on(own.device(), from);
  check<MissingShardPatch>(taken > 0 && self.is_contiguous(), "aten::bernoulli_.Tensor",
                           "got a sharded tensor with strides ", self.strides(), " on ",
                           own.device(),
                           "; expected a contiguous one, and a kernel of which a part can be drawn "
                           "alone. Use one probability, bernoulli_(p), or rand_like(x) < p.");
  const Grid grid = Grid::of(self);
  const Box box = grid.box(grid.mesh.rank());
  if (own.numel() > 0) {
    const Runs runs(self.sizes(), box.begin, box.size);
    own.copy_(bernoulli_numbers(runs, from, own.device()).view(own.sizes()));
  }
  const std::lock_guard lock(from.mutex());
  from.set_offset(from.get_offset() + taken);
}

}  // namespace shard
