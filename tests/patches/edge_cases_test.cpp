// SPDX-License-Identifier: Apache-2.0
// The situations in which sharded tensor libraries are known to refuse, to abort or to be silently
// wrong: strides that do not match the kernel, losses over uneven shards, boundaries inside a view,
// ... Every one on 1 to 4 ranks and on even, uneven, one-row and empty shards.
#include "patches/edge_cases.h"

#include <torch/torch.h>

namespace shard::testing::edge_cases {
namespace {

namespace F = torch::nn::functional;
using at::Tensor;

// ---- convolution

struct Conv {
  Sizes kernel{3, 3}, stride{1, 1}, padding{0, 0}, dilation{1, 1};
  int64_t groups = 1;
};
Sample conv(const std::string& name, const Conv& c, int64_t rows = 16, int64_t dim = 2,
            int64_t columns = 8, int64_t batch = 1) {
  return {name,
          {sharded(d({batch, 4, rows, columns}), dim),
           weight(d({4, 4 / c.groups, c.kernel[0], c.kernel[1]}) * 0.3), weight(d({4}))},
          [c](const Tensors& t) {
            return at::conv2d(t[0], t[1], t[2], c.stride, c.padding, c.dilation, c.groups);
          }};
}
Sample padded_conv(const std::string& name, const F::PadFuncOptions& pad) {
  return {name,
          {sharded(d({1, 4, 16, 8}), 2), weight(d({4, 4, 3, 3}) * 0.3)},
          [pad](const Tensors& t) { return at::conv2d(F::pad(t[0], pad), t[1]); }};
}
Sample string_conv(const std::string& name, Sizes kernel, const std::string& padding) {
  return {name,
          {sharded(d({1, 4, 16, 8}), 2), weight(d({4, 4, kernel[0], kernel[1]}) * 0.3)},
          [padding](const Tensors& t) { return at::conv2d(t[0], t[1], {}, 1, padding); }};
}

std::vector<Sample> convolutions() {
  torch::manual_seed(70);
  return {
      conv("k3_s1_p1", {.padding = {1, 1}}),
      conv("k3_s1_p0", {}),
      conv("k3_s2_p1_on_odd_shards", {.stride = {2, 2}, .padding = {1, 1}}, 15),
      conv("k3_s3_p0", {.stride = {3, 3}}, 18),
      conv("k3_s2_p0", {.stride = {2, 2}}),
      conv("k5_p2", {.kernel = {5, 5}, .padding = {2, 2}}),
      conv("k5_p1", {.kernel = {5, 5}, .padding = {1, 1}}),
      conv("k3_p2", {.padding = {2, 2}}),
      conv("k3_d2_p2", {.padding = {2, 2}, .dilation = {2, 2}}),
      conv("k2_s1_p0", {.kernel = {2, 2}}),
      conv("k4_s2_p1", {.kernel = {4, 4}, .stride = {2, 2}, .padding = {1, 1}}),
      conv("k2_s2_p0", {.kernel = {2, 2}, .stride = {2, 2}}),
      conv("k2_s2_p0_on_odd_shards", {.kernel = {2, 2}, .stride = {2, 2}}, 15),
      conv("k4_s4_patch_embedding", {.kernel = {4, 4}, .stride = {4, 4}}, 20),
      conv("k1_s2_on_odd_shards", {.kernel = {1, 1}, .stride = {2, 2}}, 15),
      conv("k1_p1", {.kernel = {1, 1}, .padding = {1, 1}}),
      conv("k3_depthwise", {.padding = {1, 1}, .groups = 4}),
      conv("k5x3", {.kernel = {5, 3}, .padding = {2, 1}}),
      string_conv("k4_same", {4, 4}, "same"),
      string_conv("k3_valid", {3, 3}, "valid"),
      conv("k7_p3_halo_larger_than_the_shard", {.kernel = {7, 7}, .padding = {3, 3}}, 8),
      conv("k3_p1_one_row_a_rank", {.padding = {1, 1}}, 4),
      conv("k3_p1_cut_in_the_batch", {.padding = {1, 1}}, 6, 0, 5, 8),
      conv("k7_s2_p3_cut_in_the_batch", {.kernel = {7, 7}, .stride = {2, 2}, .padding = {3, 3}}, 9,
           0, 8, 5),
      conv("k3_p1_cut_in_the_channels", {.padding = {1, 1}}, 8, 1),
      conv("k3_p1_cut_in_the_columns", {.padding = {1, 1}}, 6, 3, 16),
      {"unbatched",
       {sharded(d({4, 16, 8}), 1), weight(d({4, 4, 3, 3}))},
       [](const Tensors& t) { return at::conv2d(t[0], t[1], {}, 1, 1); }},
      {"conv1d_k3_s2",
       {sharded(d({2, 4, 17}), 2), weight(d({3, 4, 3}))},
       [](const Tensors& t) { return at::conv1d(t[0], t[1], {}, 2, 1); }},
      {"conv3d_k3_p1",
       {sharded(d({1, 2, 9, 4, 4}), 2), weight(d({2, 2, 3, 3, 3}))},
       [](const Tensors& t) { return at::conv3d(t[0], t[1], {}, 1, 1); }},
      padded_conv("circular", F::PadFuncOptions({1, 1, 1, 1}).mode(torch::kCircular)),
      padded_conv("reflect", F::PadFuncOptions({1, 1, 1, 1}).mode(torch::kReflect)),
      padded_conv("replicate", F::PadFuncOptions({1, 1, 1, 1}).mode(torch::kReplicate)),
      {"strided_then_k3",
       {sharded(d({1, 4, 16, 8}), 2), weight(d({4, 4, 3, 3}))},
       [](const Tensors& t) {
         return at::conv2d(at::conv2d(t[0], t[1], {}, 2, 1).relu(), t[1], {}, 1, 1);
       }},
  };
}
SHARD_SAMPLES(ConvolutionEdges, convolutions());

// ---- pooling, normalization, interpolation, padding

Sample upsampled(const std::string& name, const F::InterpolateFuncOptions& options) {
  return of(name, d({1, 4, 16, 8}), 2,
            [options](const Tensor& t) { return F::interpolate(t, options).square(); });
}
Sample padded(const std::string& name, const F::PadFuncOptions& options) {
  return of(name, d({1, 4, 16, 8}), 2,
            [options](const Tensor& t) { return F::pad(t, options).square(); });
}
F::InterpolateFuncOptions scale(std::vector<double> factors) {
  return F::InterpolateFuncOptions().scale_factor(std::move(factors));
}

std::vector<Sample> windows() {
  torch::manual_seed(71);
  using Max = F::MaxPool2dFuncOptions;
  using Avg = F::AvgPool2dFuncOptions;
  const auto max = [](const std::string& name, const Max& o, int64_t rows = 16) {
    return of(name, d({1, 4, rows, 8}), 2,
              [o](const Tensor& t) { return F::max_pool2d(t, o).square(); });
  };
  const auto avg = [](const std::string& name, const Avg& o) {
    return of(name, d({1, 4, 16, 8}), 2,
              [o](const Tensor& t) { return F::avg_pool2d(t, o).square(); });
  };
  const auto groups = [](double mean, int64_t dim, Sizes sizes = {2, 4, 16, 6}) {
    return [=](const std::string& name, bool single = false) {
      const Tensor x = (d(sizes) + mean).to(single ? at::kFloat : at::kDouble);
      return Sample{name,
                    {sharded(x, dim), weight(torch::randn({4}, x.options())),
                     weight(torch::randn({4}, x.options()))},
                    [](const Tensors& t) { return at::group_norm(t[0], 2, t[1], t[2]); },
                    // Single precision at a large mean: LibTorch's own rounding is the bar.
                    Check{.double_backward = !single, .tolerance = single ? 2e-3 : 1e-5}};
    };
  };
  return {
      max("max_pool_k2_s2_on_odd_shards", Max(2), 15),
      max("max_pool_k3_s2_p1", Max(3).stride(2).padding(1)),
      max("max_pool_k2_s2_p1", Max(2).padding(1)),
      avg("avg_pool_k2_s2_p1", Avg(2).padding(1)),
      max("max_pool_kernel_list_stride_number", Max({2, 2}).stride(2)),
      max("max_pool_k2_s2_d2", Max(2).dilation(2)),
      avg("avg_pool_k3_s1_p1", Avg(3).stride(1).padding(1)),
      groups(0, 2)("group_norm"),
      groups(0, 0, {8, 4, 5, 6})("group_norm_cut_in_the_batch"),
      groups(0, 1)("group_norm_cut_in_the_channels"),
      groups(1e3, 2)("group_norm_mean_1e3", true),
      groups(1e4, 2)("group_norm_mean_1e4", true),
      {"layer_norm_of_tokens",
       {sharded(d({2, 16, 6}), 1), weight(d({6})), weight(d({6}))},
       [](const Tensors& t) { return at::layer_norm(t[0], {6}, t[1], t[2]); }},
      {"layer_norm_over_the_sharded_dim",
       {sharded(d({2, 6, 16}), 2), weight(d({16})), weight(d({16}))},
       [](const Tensors& t) { return at::layer_norm(t[0], {16}, t[1], t[2]); }},
      upsampled("nearest_x2", scale({2, 2}).mode(torch::kNearest)),
      upsampled("bilinear_x2", scale({2, 2}).mode(torch::kBilinear).align_corners(false)),
      upsampled("bilinear_x2_corners", scale({2, 2}).mode(torch::kBilinear).align_corners(true)),
      upsampled("bilinear_x1_5", scale({1.5, 1.5}).mode(torch::kBilinear).align_corners(false)),
      upsampled("nearest_x1_5", scale({1.5, 1.5}).mode(torch::kNearest)),
      upsampled("bilinear_x0_5", scale({0.5, 0.5}).mode(torch::kBilinear).align_corners(false)),
      upsampled("nearest_to_a_size",
                F::InterpolateFuncOptions().size(Sizes{23, 9}).mode(torch::kNearest)),
      padded("pad_constant", F::PadFuncOptions({1, 2, 3, 1})),
      padded("pad_reflect", F::PadFuncOptions({0, 0, 2, 2}).mode(torch::kReflect)),
      padded("pad_replicate", F::PadFuncOptions({0, 0, 2, 2}).mode(torch::kReplicate)),
      padded("pad_circular", F::PadFuncOptions({0, 0, 2, 2}).mode(torch::kCircular)),
      padded("pad_circular_of_columns", F::PadFuncOptions({2, 2, 0, 0}).mode(torch::kCircular)),
      padded("pad_negative", F::PadFuncOptions({0, 0, -1, -3})),
  };
}
SHARD_SAMPLES(WindowEdges, with_traffic(windows(), {{"group_norm_cut_in_the_channels", 1.5}}));

// ---- reductions

std::vector<Sample> reductions() {
  torch::manual_seed(72);
  const auto over = [](const std::string& name, const Unary& f, Check check = {}) {
    return of(name, d({2, 4, 16, 6}), 2, f, check);
  };
  const Check once{.double_backward = false};
  return {
      over("sum", [](const Tensor& t) { return t.sum(); }),
      over("mean", [](const Tensor& t) { return t.mean(); }),
      over("mean_of_the_sharded_dim", [](const Tensor& t) { return t.mean(2); }),
      over("mean_keepdim_before_the_shard", [](const Tensor& t) { return t.mean(1, true); }),
      over("sum_before_the_shard", [](const Tensor& t) { return t.sum(1); }),
      over("var_of_the_sharded_dim", [](const Tensor& t) { return t.var(2); }),
      over("var", [](const Tensor& t) { return t.var(); }),
      over("std_of_the_sharded_dim", [](const Tensor& t) { return t.std(2); }),
      over(
          "max_values", [](const Tensor& t) { return std::get<0>(t.max(2)); }, once),
      over(
          "max_indices", [](const Tensor& t) { return std::get<1>(t.max(2)); }, once),
      over(
          "argmax", [](const Tensor& t) { return t.argmax(2); }, once),
      over(
          "amax", [](const Tensor& t) { return t.amax(2); }, once),
      over("norm", [](const Tensor& t) { return t.norm(); }),
      over("prod", [](const Tensor& t) { return t.prod(2); }),
      over("softmax_of_the_sharded_dim", [](const Tensor& t) { return t.softmax(2); }),
      over("softmax_before_the_shard", [](const Tensor& t) { return t.softmax(1); }),
      over("logsumexp_of_the_sharded_dim", [](const Tensor& t) { return t.logsumexp(2); }),
      over("sum_of_errors_over_a_number",
           [](const Tensor& t) { return (t * 2 - 1).abs().sum() / t.numel(); }),
  };
}
SHARD_SAMPLES(ReductionEdges, reductions());

// ---- views, slices, joins

std::vector<Sample> views() {
  torch::manual_seed(73);
  const auto seen = [](const std::string& name, Sizes sizes, int64_t dim, const Unary& f) {
    return of(name, d(std::move(sizes)), dim, [f](const Tensor& t) { return f(t).square(); });
  };
  return {
      seen("permute_contiguous_view", {2, 3, 8, 4}, 2,
           [](const Tensor& t) {
             return t.permute({0, 2, 3, 1}).contiguous().view({2, 8, 12});
           }),
      seen("flatten_one_sample", {1, 4, 16, 6}, 2, [](const Tensor& t) { return t.flatten(2); }),
      seen("merge_across_the_shard", {2, 12}, 1, [](const Tensor& t) { return t.reshape({24}); }),
      seen("merge_batch_and_sequence", {2, 16, 4}, 1,
           [](const Tensor& t) {
             return t.reshape({32, 4});
           }),
      seen("split_not_divisible", {18, 4}, 0,
           [](const Tensor& t) {
             return t.view({6, 3, 4});
           }),
      seen("split_with_boundaries_inside", {12}, 0,
           [](const Tensor& t) {
             return t.view({3, 4});
           }),
      seen("squeeze_unsqueeze", {2, 1, 16}, 2,
           [](const Tensor& t) { return t.squeeze(1).unsqueeze(0); }),
      seen("select_of_the_sharded_dim", {2, 4, 16, 6}, 2,
           [](const Tensor& t) { return t.select(2, 3); }),
      seen("select_negative", {2, 4, 16}, 2, [](const Tensor& t) { return t.select(1, -1); }),
      seen("select_last_dim", {2, 16, 4}, 1, [](const Tensor& t) { return t.select(-1, 0); }),
      seen("slice_of_the_sharded_dim", {2, 4, 16}, 2,
           [](const Tensor& t) { return t.slice(2, 1, -1); }),
      seen("slice_with_a_step", {2, 4, 17}, 2,
           [](const Tensor& t) { return t.slice(2, 1, 16, 3); }),
      seen("slice_of_another_dim", {2, 16, 6}, 1,
           [](const Tensor& t) { return t.slice(-1, 0, 3); }),
      seen("cat_of_the_sharded_dim", {2, 4, 16}, 2,
           [](const Tensor& t) {
             return at::cat({t, t * 2}, 2);
           }),
      seen("cat_of_another_dim", {2, 4, 16}, 2,
           [](const Tensor& t) {
             return at::cat({t, t * 2}, 1);
           }),
      seen("stack", {2, 4, 16}, 2,
           [](const Tensor& t) {
             return at::stack({t, t * 2}, 0);
           }),
      seen("chunk_of_the_sharded_dim", {2, 4, 16}, 2,
           [](const Tensor& t) { return t.chunk(2, 2)[1]; }),
      seen("split_of_the_sharded_dim", {2, 4, 16}, 2,
           [](const Tensor& t) { return t.split(3, 2)[1]; }),
      seen("unbind", {2, 4, 16}, 2, [](const Tensor& t) { return t.unbind(1)[0]; }),
      seen("unbind_of_the_sharded_dim", {2, 4, 9}, 2,
           [](const Tensor& t) { return t.unbind(2)[0]; }),
      seen("transpose", {2, 16, 4}, 1, [](const Tensor& t) { return t.transpose(1, 2); }),
      seen("expand", {1, 16, 4}, 1,
           [](const Tensor& t) {
             return t.expand({3, 16, 4});
           }),
  };
}
SHARD_SAMPLES(ViewEdges, with_traffic(views(), {{"cat_of_the_sharded_dim", 1.75},
                                                {"chunk_of_the_sharded_dim", 0.75},
                                                {"split_of_the_sharded_dim", 1.25},
                                                {"unbind_of_the_sharded_dim", 1.5}}));

// ---- products, losses, the rest

std::vector<Sample> others() {
  torch::manual_seed(74);
  const Check once{.double_backward = false};
  return {
      {"einsum_over_channels",
       {sharded(d({1, 4, 16, 3}), 2), weight(d({5, 4}))},
       [](const Tensors& t) {
         return at::einsum("bchw,dc->bdhw", {t[0], t[1]});
       }},
      {"einsum_over_channels_of_a_batch",
       {sharded(d({2, 4, 16, 3}), 2), weight(d({5, 4}))},
       [](const Tensors& t) {
         return at::einsum("bchw,dc->bdhw", {t[0], t[1]});
       }},
      {"contraction_over_the_sharded_dim",
       {sharded(d({2, 5, 16}), 2), sharded(d({16, 3}), 0)},
       [](const Tensors& t) { return at::matmul(t[0], t[1]); }},
      {"linear_of_sharded_features",
       {sharded(d({2, 5, 16}), 2), weight(d({3, 16})), weight(d({3}))},
       [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); }},
      {"linear_of_tokens",
       {sharded(d({2, 16, 5}), 1), weight(d({3, 5})), weight(d({3}))},
       [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); }},
      {"rows_times_weight",
       {sharded(d({16, 5}), 0), weight(d({5, 3}))},
       [](const Tensors& t) { return at::matmul(t[0], t[1]); }},
      of("gelu_and_dropout_of_nothing", d({2, 16, 5}), 1,
         [](const Tensor& t) { return at::dropout(at::gelu(t), 0, true); }),
      of("relu", d({2, 16, 5}), 1, [](const Tensor& t) { return t.relu(); }),
      of("twice_and_plus", d({2, 16, 5}), 1, [](const Tensor& t) { return t * 2 + t; }),
      of("in_place_on_a_derived_tensor", d({2, 16, 5}), 1,
         [](const Tensor& t) { return (t * 1).mul_(3).mul_(t); }),
      of("where", d({2, 16, 5}), 1,
         [](const Tensor& t) { return at::where(t > 0, t * t, at::zeros({}, t.options())); }),
      of(
          "to_single_precision_and_back", d({2, 16, 5}), 1,
          [](const Tensor& t) { return t.to(at::kFloat).to(at::kDouble) * 2; },
          Check{.tolerance = 1e-5}),
      {"sum_of_differently_cut_tensors",
       {sharded(d({16, 8}), 0), sharded(d({16, 8}), 1)},
       [](const Tensors& t) { return t[0] * t[1] + t[0]; }},
      {"bias",
       {sharded(d({2, 16, 5}), 1), weight(d({5}))},
       [](const Tensors& t) { return (t[0] + t[1]).square(); }},
      {"plain_tensor_of_the_whole_shape",
       {sharded(d({2, 16, 5}), 1), weight(d({1, 16, 5}))},
       [](const Tensors& t) { return (t[0] + t[1]).square(); }},
      {"mse_loss",
       {sharded(d({2, 16, 5}), 1), sharded(d({2, 16, 5}), 1)},
       [](const Tensors& t) { return at::mse_loss(t[0], t[1]); }},
      {"mean_of_squared_differences",
       {sharded(d({2, 16, 5}), 1), sharded(d({2, 16, 5}), 1)},
       [](const Tensors& t) { return (t[0] - t[1]).square().mean(); }},
      {"l1_loss",
       {sharded(d({2, 16, 5}), 1), sharded(d({2, 16, 5}), 1)},
       [](const Tensors& t) { return at::l1_loss(t[0], t[1]); }},
      {"cross_entropy_of_points",
       {sharded(d({16, 5}), 0), constant(torch::randint(0, 5, {16}), 0)},
       [](const Tensors& t) { return at::cross_entropy_loss(t[0], t[1]); }},
  };
}
SHARD_SAMPLES(OtherEdges, with_traffic(others(), {{"einsum_over_channels_of_a_batch", 1.25}}));

}  // namespace
}  // namespace shard::testing::edge_cases
