// SPDX-License-Identifier: Apache-2.0
// LibTorch's op draws, for every weight of the whole, whether it is kept. A rank draws the blocks
// that it computes, and again in the backward.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/OpMathType.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>
#include <shard/ring_attention.h>

#include "base/rank_context.h"
#include "random/draw.h"

namespace shard {
namespace {

using at::Tensor;

at::Generator generator_of_rank() {
  const RankContext* context = rank_context();
  if (context != nullptr && context->generator.defined()) return context->generator;
  return at::detail::getDefaultCPUGenerator();
}

WholeTensor contiguous(const Shape& sizes, at::ScalarType dtype) {
  WholeTensor whole{sizes, Shape(sizes.size(), 1), dtype};
  for (size_t i = sizes.size() - 1; i > 0; --i) {
    whole.strides[i - 1] = whole.strides[i] * std::max<int64_t>(sizes[i], 1);
  }
  return whole;
}

class Drawn final : public AttentionDropout {
 public:
  Drawn(double p, const Shape& scores, at::ScalarType dtype)
      : p_(p),
        draw_(contiguous(scores, dtype),
              {"aten::bernoulli_.float",
               [p](const Tensor& numbers, const at::Generator& generator) {
                 numbers.bernoulli_(1 - p, generator);
               }},
              generator_of_rank()) {}

  Tensor factors(const std::vector<Rows>& leading, const Rows& queries,
                 const Rows& keys) const override {
    const at::AutoDispatchBelowADInplaceOrView guard;
    Box box;
    for (const Rows& rows : leading) add(rows, box);
    add(queries, box);
    add(keys, box);
    return draw_.part(box).div_(1 - p_);
  }

 private:
  static void add(const Rows& rows, Box& box) {
    box.begin.push_back(rows.begin);
    box.size.push_back(rows.size());
  }
  double p_;
  RandomDraw draw_;
};

/// p = 1: nothing is drawn.
class All final : public AttentionDropout {
 public:
  explicit All(at::ScalarType dtype) : dtype_(dtype) {}
  Tensor factors(const std::vector<Rows>& leading, const Rows& queries,
                 const Rows& keys) const override {
    std::vector<int64_t> sizes;
    for (const Rows& rows : leading) sizes.push_back(rows.size());
    sizes.insert(sizes.end(), {queries.size(), keys.size()});
    return at::zeros(sizes, dtype_);
  }

 private:
  at::ScalarType dtype_;
};

}  // namespace

std::shared_ptr<const AttentionDropout> draw_attention_dropout(double p, const Shape& scores,
                                                               at::ScalarType dtype) {
  const auto accumulating = at::toOpMathType(dtype);  // LibTorch draws for float scores of halves
  if (p == 1) return std::make_shared<All>(accumulating);
  return std::make_shared<Drawn>(p, scores, accumulating);
}

}  // namespace shard
