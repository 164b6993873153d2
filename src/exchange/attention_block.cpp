// SPDX-License-Identifier: Apache-2.0
#include "exchange/attention_block.h"

#include <ATen/Context.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

namespace shard {
namespace {

using at::Tensor;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

Tensor is_minus_infinity(const Tensor& t) { return t == kMinusInfinity; }

/// The flash kernel reads rows of the last dim as contiguous ones.
Tensor with_dense_rows(const Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); }

bool has_flash_kernel(const Block& block) {
  const auto dtype = block.q.scalar_type();
  return block.q.is_cpu() && !block.kept.defined() && block.q.size(3) == block.v.size(3) &&
         (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
          dtype == at::kBFloat16) &&
         at::globalContext().userEnabledFlashSDP();
}

std::optional<Tensor> optional_mask(const Block& block) {
  if (!block.mask.defined()) return std::nullopt;
  const auto dtype = block.q.scalar_type();
  const bool is_finer = block.mask.scalar_type() == at::kFloat && dtype != at::kDouble;
  return additive_mask(block.mask, is_finer ? at::kFloat : dtype);
}

BlockResult flash(const Block& block) {
  const auto mask = optional_mask(block);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      with_dense_rows(block.q), with_dense_rows(block.k), with_dense_rows(block.v),
      /*dropout_p=*/0, block.is_causal, mask, block.scale);
  // The kernel gives 0 for rows that see nothing, which other blocks' rows must not be merged with.
  if (mask) lse = lse.masked_fill(is_minus_infinity(mask->amax(-1)), kMinusInfinity);
  return {out, lse};
}

BlockGradients flash_backward(const Tensor& gradient, const Block& block,
                              const BlockResult& merged) {
  auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      with_dense_rows(gradient), with_dense_rows(block.q), with_dense_rows(block.k),
      with_dense_rows(block.v), with_dense_rows(merged.out), merged.lse, /*dropout_p=*/0,
      block.is_causal, optional_mask(block), block.scale);
  return {q, k, v, Tensor()};
}

// ---- the same made of products

/// Key heads as often as queries use them.
Tensor repeated(const Tensor& keys, const Tensor& q) {
  const int64_t times = q.size(1) / keys.size(1);
  return times == 1 ? keys : keys.repeat_interleave(times, 1);
}

Tensor summed_over_groups(const Tensor& gradient, const Tensor& keys) {
  const int64_t times = gradient.size(1) / keys.size(1);
  return times == 1 ? gradient : gradient.unflatten(1, {keys.size(1), times}).sum(2);
}

/// q, k and v in the accumulating dtype, k and v with the heads of q; and the scores.
struct Products {
  Tensor q, k, v, scores;

  explicit Products(const Block& block) {
    const auto dtype = accumulating_dtype(block.q.scalar_type());
    q = block.q.to(dtype);
    k = repeated(block.k.to(dtype), q);
    v = repeated(block.v.to(dtype), q);
    scores = at::matmul(q, k.transpose(-2, -1)).mul_(block.scale);
    if (block.mask.defined()) scores.add_(additive_mask(block.mask, dtype));
    if (block.is_causal) {
      const auto seen = at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).tril_();
      scores.masked_fill_(seen.logical_not_(), kMinusInfinity);
    }
  }
};

BlockResult products(const Block& block) {
  const Products p(block);
  const Tensor lse = p.scores.logsumexp(-1);
  const Tensor weights = (p.scores - finite(lse).unsqueeze(-1)).exp_();
  if (block.kept.defined()) weights.mul_(block.kept);
  return {at::matmul(weights, p.v), lse};
}

BlockGradients products_backward(const Tensor& gradient, const Block& block,
                                 const BlockResult& merged) {
  const Products p(block);
  const Tensor g = gradient.to(p.q.scalar_type());
  const Tensor weights = (p.scores - merged.lse.unsqueeze(-1)).exp_();
  const Tensor mean = (g * merged.out).sum(-1, true);
  const Tensor of_weights = at::matmul(g, p.v.transpose(-2, -1));
  if (block.kept.defined()) of_weights.mul_(block.kept);
  const Tensor of_scores = of_weights.sub_(mean).mul_(weights);
  if (block.kept.defined()) weights.mul_(block.kept);
  const Tensor k = at::matmul(of_scores.transpose(-2, -1), p.q).mul_(block.scale);
  return {at::matmul(of_scores, p.k).mul_(block.scale), summed_over_groups(k, block.k),
          summed_over_groups(at::matmul(weights.transpose(-2, -1), g), block.v), of_scores};
}

}  // namespace

std::vector<BlockPart> visible_parts(const Rows& queries, const Rows& keys, bool is_causal) {
  if (queries.size() == 0 || keys.size() == 0) return {};
  if (!is_causal) return {{{0, queries.size()}, {0, keys.size()}, false}};
  std::vector<BlockPart> parts;
  if (keys.begin < queries.begin) {  // seen by all queries
    parts.push_back({{0, queries.size()}, {0, std::min(keys.end, queries.begin) - keys.begin}});
  }
  const int64_t first = std::max(queries.begin, keys.begin);
  const int64_t end = std::min(queries.end, keys.end);
  if (first < end) {
    parts.push_back(
        {{first - queries.begin, queries.size()}, {first - keys.begin, end - keys.begin}, true});
  }
  return parts;
}

BlockResult attend(const Block& block) {
  return has_flash_kernel(block) ? flash(block) : products(block);
}

BlockGradients attend_backward(const Tensor& gradient, const Block& block,
                               const BlockResult& merged, bool wants_mask) {
  return has_flash_kernel(block) && !wants_mask ? flash_backward(gradient, block, merged)
                                                : products_backward(gradient, block, merged);
}

at::ScalarType accumulating_dtype(at::ScalarType dtype) { return at::toOpMathType(dtype); }

Tensor finite(const Tensor& lse) { return lse.masked_fill(is_minus_infinity(lse), 0); }

Tensor additive_mask(const Tensor& mask, at::ScalarType dtype) {
  if (mask.scalar_type() != at::kBool) return mask.to(dtype);
  return at::zeros(mask.sizes(), mask.options().dtype(dtype))
      .masked_fill_(mask.logical_not(), kMinusInfinity);
}

}  // namespace shard
