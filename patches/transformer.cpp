// SPDX-License-Identifier: Apache-2.0
// The fused kernels that the Python modules MultiheadAttention and TransformerEncoderLayer call in
// evaluation without gradients. On sharded tensors they are made of what they fuse, so a cut
// sequence is attended to as by scaled_dot_product_attention.
#include <ATen/ops/_native_multi_head_attention.h>
#include <ATen/ops/_transformer_encoder_layer_fwd.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <shard/patch.h>

#include <cmath>
#include <limits>

namespace shard {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

struct Projection {
  Tensor weight, bias;
  Tensor of(const Tensor& x) const { return at::linear(x, weight, bias); }
};

/// What masks of the fused kernels are for (as their mask_type counts them).
enum class MaskType : int64_t { Queries = 0, Padding = 1, Both = 2 };

struct Heads {
  Projection qkv, out;
  int64_t count = 1;
  OptionalTensor hidden = std::nullopt;  ///< true: not seen; broadcasts to the scores

  /// (batch, rows, features) -> (batch, heads, rows, features of one).
  Tensor split(const Tensor& x, int64_t part) const {
    const int64_t width = qkv.weight.size(0) / 3;
    const Projection own{qkv.weight.narrow(0, part * width, width),
                         qkv.bias.defined() ? qkv.bias.narrow(0, part * width, width) : qkv.bias};
    return own.of(x).unflatten(-1, {count, width / count}).transpose(1, 2);
  }
  Tensor join(const Tensor& y) const { return out.of(y.transpose(1, 2).flatten(2)); }

  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v) const {
    const auto seen = hidden ? OptionalTensor(hidden->logical_not()) : std::nullopt;
    return join(at::scaled_dot_product_attention(split(q, 0), split(k, 1), split(v, 2), seen));
  }
  /// With the weights, which the queries' rank holds of all keys.
  std::tuple<Tensor, Tensor> attend_with_weights(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 bool averages) const {
    const Tensor queries = split(q, 0) / std::sqrt(static_cast<double>(q.size(-1) / count));
    Tensor scores = at::matmul(queries, split(k, 1).transpose(-2, -1));
    if (hidden) scores = scores.masked_fill(*hidden, -std::numeric_limits<double>::infinity());
    const Tensor weights = scores.softmax(-1);
    return {join(at::matmul(weights, split(v, 2))), averages ? weights.mean(1) : weights};
  }
};

OptionalTensor hidden_by(const OptionalTensor& mask, std::optional<int64_t> type) {
  if (!mask || !mask->defined()) return std::nullopt;
  const Tensor hidden = mask->to(at::kBool);
  const bool is_padding = type == static_cast<int64_t>(MaskType::Padding) && hidden.dim() == 2;
  return is_padding ? hidden.unsqueeze(1).unsqueeze(1) : hidden;
}

void check_heads(const char* op, int64_t features, int64_t heads, const Tensor& qkv_weight) {
  check<SpecMismatch>(heads > 0 && features % heads == 0 && qkv_weight.size(0) == 3 * features, op,
                      "got ", features, " features, ", heads, " heads and a weight of ",
                      qkv_weight.sizes(),
                      "; expected heads that divide the features, and three rows of weights a "
                      "feature. Pass the module's own.");
}

std::tuple<Tensor, Tensor> native_multi_head_attention(
    const Tensor& query, const Tensor& key, const Tensor& value, int64_t features, int64_t heads,
    const Tensor& qkv_weight, const Tensor& qkv_bias, const Tensor& out_weight,
    const Tensor& out_bias, const OptionalTensor& mask, bool needs_weights, bool averages_weights,
    std::optional<int64_t> mask_type) {
  check_heads("_native_multi_head_attention", features, heads, qkv_weight);
  const Heads of{{qkv_weight, qkv_bias}, {out_weight, out_bias}, heads, hidden_by(mask, mask_type)};
  if (needs_weights) return of.attend_with_weights(query, key, value, averages_weights);
  return {of.attend(query, key, value), Tensor()};
}

Tensor transformer_encoder_layer(const Tensor& source, int64_t features, int64_t heads,
                                 const Tensor& qkv_weight, const Tensor& qkv_bias,
                                 const Tensor& out_weight, const Tensor& out_bias, bool uses_gelu,
                                 bool norms_first, double eps, const Tensor& norm_weight_1,
                                 const Tensor& norm_bias_1, const Tensor& norm_weight_2,
                                 const Tensor& norm_bias_2, const Tensor& weight_1,
                                 const Tensor& bias_1, const Tensor& weight_2, const Tensor& bias_2,
                                 const OptionalTensor& mask, std::optional<int64_t> mask_type) {
  check_heads("_transformer_encoder_layer_fwd", features, heads, qkv_weight);
  const Heads attention{
      {qkv_weight, qkv_bias}, {out_weight, out_bias}, heads, hidden_by(mask, mask_type)};
  const auto norm = [&](const Tensor& x, const Projection& p) {
    return at::layer_norm(x, {features}, p.weight, p.bias, eps);
  };
  const auto feed_forward = [&](const Tensor& x) {
    const Tensor hidden = Projection{weight_1, bias_1}.of(x);
    return Projection{weight_2, bias_2}.of(uses_gelu ? at::gelu(hidden) : at::relu(hidden));
  };
  const Projection norm_1{norm_weight_1, norm_bias_1};
  const Projection norm_2{norm_weight_2, norm_bias_2};
  if (norms_first) {
    const Tensor normed = norm(source, norm_1);
    const Tensor x = source + attention.attend(normed, normed, normed);
    return x + feed_forward(norm(x, norm_2));
  }
  const Tensor x = norm(source + attention.attend(source, source, source), norm_1);
  return norm(x + feed_forward(x), norm_2);
}

}  // namespace

SHARD_PATCH(transformer) {
  patch.function<at::_ops::_native_multi_head_attention>(native_multi_head_attention)
      .shards("batch", "sequence")
      .notes("without weights as scaled_dot_product_attention; with weights the keys are gathered");
  patch.function<at::_ops::_transformer_encoder_layer_fwd>(transformer_encoder_layer)
      .shards("batch", "sequence")
      .notes("as scaled_dot_product_attention, linear and layer_norm");
}

}  // namespace shard
