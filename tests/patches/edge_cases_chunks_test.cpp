// SPDX-License-Identifier: Apache-2.0
// Shards as torch::chunk cuts them, which other libraries take for granted: all of one size but the
// last ones, which are shorter or empty. 5 rows over 4 ranks are 2, 2, 1, 0.
#include <torch/torch.h>

#include "patches/edge_cases.h"

namespace shard::testing::edge_cases {
namespace {

namespace F = torch::nn::functional;
using at::Tensor;
using torch::indexing::Slice;

/// Samples whose rows travel.
const std::map<std::string, double> kTraffic{
    {"cat_of_the_sharded_dim", 1.75}, {"cumsum", 1.5}, {"topk", 1.5}, {"index_select", 2.25}};

/// Every sample on 2, 3 and 4 ranks.
std::vector<CoveredSample> in_chunks(const std::vector<Sample>& samples) {
  std::vector<Setting> settings;
  for (const int ranks : {2, 3, 4}) settings.push_back({ranks, "chunks"});
  std::vector<CoveredSample> result;
  for (const auto& sample : samples) result.push_back({sample, settings});
  return result;
}

/// Makes the samples of tensors with `n` rows, whose names end with that number.
template <class Make>
std::vector<CoveredSample> for_sizes(const Make& make) {
  std::vector<Sample> all;
  for (const int64_t n : {5, 9, 17}) {
    torch::manual_seed(static_cast<uint64_t>(75 + n));
    for (Sample& sample : make(n)) {
      if (const auto moves = kTraffic.find(sample.name); moves != kTraffic.end()) {
        sample.check.traffic = moves->second;
      }
      sample.name += "_of_" + std::to_string(n);
      all.push_back(std::move(sample));
    }
  }
  return in_chunks(all);
}

std::vector<Sample> views(int64_t n) {
  const auto seen = [n](const std::string& name, const Unary& f) {
    return of(name, d({1, 4, n, 3}), 2, [f](const Tensor& t) { return f(t).square(); });
  };
  return {
      seen("permute",
           [](const Tensor& t) {
             return t.permute({0, 2, 3, 1}).contiguous();
           }),
      seen("transpose", [](const Tensor& t) { return t.transpose(1, 2); }),
      seen("select",
           [](const Tensor& t) {
             return t.index({Slice(), 1});
           }),
      seen("slice",
           [](const Tensor& t) {
             return t.index({Slice(), Slice(), Slice(1, -1)});
           }),
      seen("cat",
           [](const Tensor& t) {
             return at::cat({t, t * 2}, 1);
           }),
      seen("cat_of_the_sharded_dim",
           [](const Tensor& t) {
             return at::cat({t, t * 2}, 2);
           }),
      seen("stack",
           [](const Tensor& t) {
             return at::stack({t, t * 2});
           }),
      seen("flatten", [](const Tensor& t) { return t.flatten(2); }),
      seen("expand",
           [](const Tensor& t) {
             return t.expand({3, 4, -1, 3});
           }),
      seen("squeeze", [](const Tensor& t) { return t.squeeze(0).unsqueeze(-1); }),
      seen("where", [](const Tensor& t) { return at::where(t > 0, t, at::zeros_like(t)); }),
      seen("masked_fill", [](const Tensor& t) { return t.masked_fill(t > 0.5, 2); }),
      of("to_single_precision", d({1, 4, n, 3}), 2,
         [](const Tensor& t) { return t.to(at::kFloat) * 2; }, {.double_backward = false}),
  };
}
SHARD_SAMPLE_TESTS(ChunkViews, for_sizes(views));

std::vector<Sample> reductions(int64_t n) {
  const auto over = [n](const std::string& name, const Unary& f, Check check = {}) {
    return of(name, d({2, 4, n, 3}), 2, f, check);
  };
  const Check once{.double_backward = false};
  return {
      over("sum", [](const Tensor& t) { return t.sum(); }),
      over("mean", [](const Tensor& t) { return t.mean(); }),
      over("mean_of_the_sharded_dim", [](const Tensor& t) { return t.mean(2); }),
      over("var", [](const Tensor& t) { return t.var(); }),
      over("std_of_the_sharded_dim", [](const Tensor& t) { return t.std(2); }),
      over("norm", [](const Tensor& t) { return t.norm(); }),
      over("softmax", [](const Tensor& t) { return t.softmax(2); }),
      over("logsumexp", [](const Tensor& t) { return t.logsumexp(2); }),
      over(
          "amax", [](const Tensor& t) { return t.amax(2); }, once),
      over(
          "argmax", [](const Tensor& t) { return t.argmax(2); }, once),
      over("cumsum", [](const Tensor& t) { return t.cumsum(2).square(); }),
      over("topk", [](const Tensor& t) { return std::get<0>(t.topk(3, 2)).square(); }),
  };
}
SHARD_SAMPLE_TESTS(ChunkReductions, for_sizes(reductions));

std::vector<Sample> modules(int64_t n) {
  const auto image = [n] { return sharded(d({2, 4, n, 6}), 2); };
  const Input filter = weight(d({4, 4, 3, 3}) * 0.3);
  return {
      {"conv",
       {image(), filter},
       [](const Tensors& t) { return at::conv2d(t[0], t[1], {}, 1, 1); }},
      {"conv_stride_2",
       {image(), filter},
       [](const Tensors& t) { return at::conv2d(t[0], t[1], {}, 2, 1); }},
      {"max_pool", {image()}, [](const Tensors& t) { return at::max_pool2d(t[0], 2).square(); }},
      {"group_norm",
       {image(), weight(d({4})), weight(d({4}))},
       [](const Tensors& t) { return at::group_norm(t[0], 2, t[1], t[2]); }},
      {"batch_norm",
       {image()},
       [](const Tensors& t) {
         return at::batch_norm(t[0], {}, {}, {}, {}, true, 0.1, 1e-3, false);
       }},
      {"layer_norm_over_the_sharded_dim",
       {image()},
       [n](const Tensors& t) {
         return at::layer_norm(t[0], {n, 6});
       }},
      {"upsample",
       {image()},
       [](const Tensors& t) {
         return F::interpolate(t[0], F::InterpolateFuncOptions()
                                         .scale_factor(std::vector<double>{2, 2})
                                         .mode(torch::kBilinear)
                                         .align_corners(false));
       }},
      {"pad_circular",
       {image()},
       [](const Tensors& t) {
         return F::pad(t[0], F::PadFuncOptions({1, 1, 2, 2}).mode(torch::kCircular)).square();
       }},
  };
}
SHARD_SAMPLE_TESTS(ChunkModules, for_sizes(modules));

std::vector<Sample> products_and_losses(int64_t n) {
  const auto points = [n] { return sharded(d({1, n, 4}), 1); };
  const auto pair = [&](const std::string& name, const Function& f) {
    return Sample{name, {points(), points()}, f};
  };
  return {
      {"plain_tensor_of_the_whole_shape",
       {points(), weight(d({1, n, 4}))},
       [](const Tensors& t) { return t[0] * t[1]; }},
      {"einsum",
       {sharded(d({1, 4, n, 3}), 2), weight(d({5, 4}))},
       [](const Tensors& t) {
         return at::einsum("bchw,dc->bdhw", {t[0], t[1]});
       }},
      {"contraction_over_the_sharded_dim",
       {sharded(d({3, n}), 1), sharded(d({n, 4}), 0)},
       [](const Tensors& t) { return at::matmul(t[0], t[1]); }},
      {"rows_times_weight",
       {sharded(d({n, 5}), 0), weight(d({5, 3}))},
       [](const Tensors& t) { return at::matmul(t[0], t[1]); }},
      pair("mean_of_squared_differences",
           [](const Tensors& t) { return (t[0] - t[1]).square().mean(); }),
      pair("sum_of_differences_over_a_number",
           [n](const Tensors& t) { return (t[0] - t[1]).abs().sum() / n; }),
      pair("mse_loss", [](const Tensors& t) { return at::mse_loss(t[0], t[1]); }),
      pair("l1_loss", [](const Tensors& t) { return at::l1_loss(t[0], t[1]); }),
      {"cross_entropy",
       {sharded(d({n, 4}), 0), constant(torch::randint(0, 4, {n}), 0)},
       [](const Tensors& t) { return at::cross_entropy_loss(t[0], t[1]); }},
      {"index_select",
       {points()},
       [](const Tensors& t) {
         return t[0].index_select(1, torch::tensor({4, 0, 4}, at::kLong)).square();
       }},
      {"sum_of_differently_cut_tensors",
       {sharded(d({n, n}), 0), sharded(d({n, n}), 1)},
       [](const Tensors& t) { return t[0] * t[1] + t[0]; }},
  };
}
SHARD_SAMPLE_TESTS(ChunkProducts, for_sizes(products_and_losses));

}  // namespace
}  // namespace shard::testing::edge_cases
