// SPDX-License-Identifier: Apache-2.0
// The fused kernels have no gradient: their samples are run without.
#include <ATen/ops/_native_multi_head_attention.h>
#include <ATen/ops/_transformer_encoder_layer_fwd.h>
#include <support/samples.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int64_t kFeatures = 8;
constexpr int64_t kHeads = 2;

Input given(const Tensor& whole, int64_t cut = -1) { return constant(whole, cut); }

/// Query, key, value and the weights of an attention.
std::vector<Input> attention_inputs(int64_t count, int64_t cut) {
  const auto rows = [&](int64_t n) { return given(torch::randn({2, n, kFeatures}), cut); };
  return {rows(count),
          rows(count),
          rows(count),
          given(torch::randn({3 * kFeatures, kFeatures})),
          given(torch::randn({3 * kFeatures})),
          given(torch::randn({kFeatures, kFeatures})),
          given(torch::randn({kFeatures}))};
}

struct Mask {
  std::vector<int64_t> sizes;
  int64_t type = 0;
};

Sample attention(const std::string& name, std::vector<Input> inputs, bool is_of_itself,
                 bool needs_weights, const std::optional<Mask>& mask = std::nullopt) {
  if (mask) {
    Tensor hidden = torch::rand(mask->sizes) > 0.6;
    hidden.select(-1, 0).fill_(false);  // every query sees a key
    inputs.push_back(given(hidden));
  }
  const auto type = mask ? std::optional<int64_t>(mask->type) : std::nullopt;
  return {name, inputs, [=](const Tensors& t) {
            const Tensor key = is_of_itself ? t[0] : t[1];
            const Tensor value = is_of_itself ? t[0] : t[2];
            const auto hidden = type ? std::optional<Tensor>(t[7]) : std::nullopt;
            const auto [y, weights] =
                at::_native_multi_head_attention(t[0], key, value, kFeatures, kHeads, t[3], t[4],
                                                 t[5], t[6], hidden, needs_weights, true, type);
            return needs_weights ? at::cat({y, weights}, -1) : y;
          }};
}

Sample encoder(const std::string& name, int64_t cut, bool uses_gelu, bool norms_first,
               const Tensor& rows) {
  std::vector<Input> inputs{given(rows, cut), given(torch::randn({3 * kFeatures, kFeatures})),
                            given(torch::randn({3 * kFeatures})),
                            given(torch::randn({kFeatures, kFeatures}))};
  for (int i = 0; i < 5; ++i) inputs.push_back(given(torch::randn({kFeatures})));
  inputs.push_back(given(torch::randn({12, kFeatures})));
  inputs.push_back(given(torch::randn({12})));
  inputs.push_back(given(torch::randn({kFeatures, 12})));
  inputs.push_back(given(torch::randn({kFeatures})));
  return {name, inputs, [=](const Tensors& t) {
            return at::_transformer_encoder_layer_fwd(t[0], kFeatures, kHeads, t[1], t[2], t[3],
                                                      t[4], uses_gelu, norms_first, 1e-5, t[5],
                                                      t[6], t[7], t[8], t[9], t[10], t[11], t[12]);
          }};
}

std::vector<Sample> samples() {
  torch::manual_seed(9);
  const auto rows = [](int64_t n) { return torch::randn({3, n, kFeatures}); };
  return {
      attention("attention_of_itself", attention_inputs(7, 1), true, false),
      attention("attention_of_another", attention_inputs(7, 1), false, false),
      attention("attention_cut_along_the_batch", attention_inputs(5, 0), true, false),
      attention("attention_with_weights", attention_inputs(7, 1), true, true),
      attention("attention_with_hidden_keys", attention_inputs(7, 1), true, false, Mask{{7, 7}, 0}),
      attention("attention_with_padding", attention_inputs(7, 1), true, true, Mask{{2, 7}, 1}),
      encoder("encoder", 1, false, false, rows(7)),
      encoder("encoder_norm_first_gelu", 1, true, true, rows(5)),
      encoder("encoder_of_one_row", 1, true, false, rows(1)),
      encoder("encoder_cut_along_the_batch", 0, false, false, rows(4)),
      encoder("encoder_of_rows_that_are_not_contiguous", 1, false, true,
              torch::randn({7, 3, kFeatures}).transpose(0, 1)),
  };
}
SHARD_SAMPLES(Transformer, with_costs(samples(), 9, "a sequence of few rows"));

Sample random_sample(Random& r) {
  const int64_t cut = r.integer(0, 1);
  const int64_t rows = r.integer(2, 9);  // the kernel takes as many keys as queries only
  return with_costs(attention("random", attention_inputs(rows, cut), false, r.coin()),
                    kCountedElsewhere, "a sequence of few rows");
}
SHARD_RANDOM_SAMPLES(RandomTransformer, random_sample);

}  // namespace
}  // namespace shard::testing
