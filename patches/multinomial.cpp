// SPDX-License-Identifier: Apache-2.0
// Sampling by weights: the samples that one device draws (docs/random-numbers.md). Every rank has
// the whole weights of its rows.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/topk.h>
#include <shard/bottom.h>
#include <shard/fill.h>
#include <shard/patch.h>

#include <limits>

namespace shard {
namespace {

using at::Tensor;

/// Moves a generator on by `count` numbers of double precision.
void skip_doubles(at::Generator generator, int64_t count) {
  constexpr int64_t kBlock = 4096;
  for (; count > 0; count -= kBlock) {
    at::empty({std::min(count, kBlock)}, at::kDouble).uniform_(0, 1, generator);
  }
}

/// With replacement LibTorch takes one number of double precision a sample, row after row: a rank
/// begins where its rows do.
Tensor with_replacement(const Tensor& weights, int64_t count, const at::Generator& generator) {
  const auto& spec = spec_of(weights);
  const auto& mesh = mesh_of(weights);
  Shape shape(weights.sizes());
  shape.back() = count;
  const Tensor& rows = raw_local(weights);
  if (!spec->is_shard()) {
    return from_local(at::multinomial(rows, count, true, generator), mesh, spec->with_shape(shape));
  }
  const at::Generator own = generator.clone();
  skip_doubles(own, offset_of(spec->partition(), mesh.rank()) * count);
  skip_doubles(generator, weights.size(0) * count);
  const Tensor samples = rows.size(0) > 0 ? at::multinomial(rows, count, true, own)
                                          : empty_of_shape(rows, {0, count}).to(at::kLong);
  return from_local(samples, mesh, spec->with_shape(shape));
}

/// As LibTorch does it: the places of the largest weights over numbers of an exponential
/// distribution, which lie in memory as the weights do.
Tensor without_replacement(const Tensor& weights, int64_t count, const at::Generator& generator) {
  const Tensor numbers = at::empty_like(weights).exponential_(1, generator);
  const Tensor scores = with_whole_dim(weights.div(numbers), weights.dim() - 1);
  return count == 1 ? scores.argmax(-1, true) : std::get<1>(scores.topk(count));
}

Tensor multinomial(const Tensor& self, int64_t count, bool replacement,
                   std::optional<at::Generator> generator) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  check<SpecMismatch>(self.dim() == 1 || self.dim() == 2, "multinomial", "got weights of ",
                      self.sizes(), "; expected a vector or rows of weights.");
  check<SpecMismatch>(count > 0 && (replacement || count <= self.size(-1)), "multinomial", "got ",
                      count, " samples of ", self.size(-1), " classes",
                      replacement ? "" : " without replacement",
                      "; expected at least one, and not more than there are.");
  const Tensor weights = redistribute(self, dual_spec(spec_of(self)));
  check<SpecMismatch>(weights.max().item<double>() < std::numeric_limits<double>::infinity() &&
                          weights.min().item<double>() >= 0 &&
                          weights.sum(-1).min().item<double>() > 0,
                      "multinomial",
                      "got weights that are negative, not finite, or all zero in a row; expected "
                      "weights >= 0 of which one is positive.");
  if (!generator) generator = generator_or_default({}, innermost(self).device());
  if (count == 1 || !replacement) return without_replacement(weights, count, *generator);
  if (!innermost(self).is_cpu()) {
    refuse_op("aten::multinomial", c10::str(count, " samples a row with replacement on a GPU"),
              "samples without replacement, or one: which number a sample has depends on the "
              "whole launch");
  }
  return with_replacement(with_whole_dim(weights, self.dim() - 1), count, *generator);
}

}  // namespace

SHARD_PATCH(multinomial) {
  patch.dispatch<at::_ops::multinomial>(multinomial)
      .shards("any dim")
      .notes("the weights of a row become whole");
}

}  // namespace shard
