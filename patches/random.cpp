// SPDX-License-Identifier: Apache-2.0
// Random numbers: the same as one device draws with the same generator, for any ranks and shards,
// and the generator afterwards is where it would be there. Every rank must call with equal
// generators, as the default ones are after launch(). docs/random-numbers.md.
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_fused_dropout.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <shard/fill.h>
#include <shard/patch.h>

namespace shard {
namespace {

using at::Tensor;
using OptionalGenerator = std::optional<at::Generator>;

/// LibTorch's samplers compare one uniform number an element with its probability.
Tensor& bernoulli_tensor_(Tensor& self, const Tensor& p, OptionalGenerator generator) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (!innermost(self).is_cpu()) {
    const Tensor numbers = at::empty_like(self, at::kFloat);
    fill_with_numbers_of_bernoulli(numbers, generator);
    return self.copy_(numbers.le(self.scalar_type() == at::kDouble ? p : p.to(at::kFloat)));
  }
  const auto dtype = p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return self.copy_(at::empty_like(self, dtype).uniform_(0, 1, std::move(generator)).lt(p));
}

Tensor bernoulli_like(const Tensor& self, OptionalGenerator generator) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return at::empty_like(self, at::MemoryFormat::Contiguous).bernoulli_(self, std::move(generator));
}

Tensor bernoulli_p(const Tensor& self, double p, OptionalGenerator generator) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return at::empty_like(self, at::MemoryFormat::Contiguous).bernoulli_(p, std::move(generator));
}

Tensor normal_around(const Tensor& mean, double std, OptionalGenerator generator) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return at::empty_like(mean, at::MemoryFormat::Contiguous)
      .normal_(0, std, std::move(generator))
      .add_(mean);
}

/// Turns `numbers` into those of these widths.
Tensor& spread(Tensor& numbers, const Tensor& std, OptionalGenerator generator) {
  check<SpecMismatch>(std.numel() == 0 || std.min().item<double>() >= 0, "normal",
                      "got widths that are negative; expected std >= 0.");
  return numbers.normal_(0, 1, std::move(generator)).mul_(std);
}

Tensor normal_of_width(double mean, const Tensor& std, OptionalGenerator generator) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  Tensor numbers = at::empty_like(std, at::MemoryFormat::Contiguous);
  return spread(numbers, std, std::move(generator)).add_(at::full({}, mean, std.options()));
}

/// Has the dtype of the mean.
Tensor normal(const Tensor& mean, const Tensor& std, OptionalGenerator generator) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto sizes = at::infer_size(mean.sizes(), std.sizes());
  const Tensor like = (is_shard_tensor(mean) ? mean : std).expand(sizes);
  Tensor numbers =
      at::empty_like(like, mean.scalar_type(), {}, {}, {}, at::MemoryFormat::Contiguous);
  return spread(numbers, std, std::move(generator)).add_(mean);
}

/// GPUs have a kernel of its own for dropout. It treats several numbers at once where the tensor
/// suits that, in the order of memory, else in the order of indices.
Tensor kept_on_a_gpu(const Tensor& x, double p) {
  const bool has_order =
      x.is_contiguous() || (x.is_non_overlapping_and_dense() && x.numel() % 2 == 0);
  if (!has_order) {
    refuse_op("aten::native_dropout", c10::str("strides ", x.strides(), " on a GPU"),
              "a contiguous tensor: call contiguous() before");
  }
  const Sampler sampler{"aten::_fused_dropout",
                        [p](const Tensor& numbers, const at::Generator& generator) {
                          numbers.copy_(std::get<1>(at::_fused_dropout(numbers, 1 - p, generator)));
                        }};
  const Tensor numbers = at::empty_like(x);
  fill_as_one_device(numbers, sampler);
  return numbers.to(at::kBool);
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& x, double p, std::optional<bool> train) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (x.numel() == 0 || !train.value_or(true)) return {x.clone(), at::ones_like(x, at::kBool)};
  if (p == 1) return {at::zeros_like(x), at::zeros_like(x, at::kBool)};
  const Tensor mask =
      innermost(x).is_cpu() ? at::empty_like(x, at::kBool).bernoulli_(1 - p) : kept_on_a_gpu(x, p);
  return {x.mul(mask).mul_(1 / (1 - p)), mask};
}

}  // namespace

SHARD_PATCH(random) {
  namespace ops = at::_ops;
  for (const char* op : {"bernoulli_.float", "uniform_", "normal_", "exponential_", "cauchy_",
                         "log_normal_", "geometric_", "random_", "random_.to", "random_.from"}) {
    patch.rule(std::string("aten::") + op, draws()).shards("any dim");
  }
  for (const char* op :
       {"rand_like", "rand_like.generator", "randn_like", "randn_like.generator", "randint_like",
        "randint_like.generator", "randint_like.low_dtype", "randint_like.low_generator_dtype"}) {
    patch.decomposes(std::string("aten::") + op).shards("any dim");
  }
  patch.dispatch<ops::bernoulli__Tensor>(bernoulli_tensor_).shards("any dim");
  patch.dispatch<ops::bernoulli>(bernoulli_like).shards("any dim");
  patch.dispatch<ops::bernoulli_p>(bernoulli_p).shards("any dim");
  patch.dispatch<ops::normal_Tensor_float>(normal_around).shards("any dim");
  patch.dispatch<ops::normal_float_Tensor>(normal_of_width).shards("any dim");
  patch.dispatch<ops::normal_Tensor_Tensor>(normal).shards("any dim");
  patch.dispatch<ops::native_dropout>(native_dropout).shards("any dim");
  patch.rule("aten::native_dropout_backward", pointwise(Linearity::Product)).shards("any dim");
}

}  // namespace shard
