// SPDX-License-Identifier: Apache-2.0
// What physics models are made of besides convolution and attention, in the forms that other
// libraries refuse: each equals the plain op. Rows are numbered as in the peer's table.
#include <torch/torch.h>

#include "patches/edge_cases.h"

namespace shard::testing::edge_cases {
namespace {

namespace F = torch::nn::functional;
using at::Tensor;

Sample transposed(const std::string& name, int64_t kernel, int64_t stride, int64_t padding,
                  int64_t output_padding = 0) {
  return {name,
          {sharded(d({1, 4, 9, 5}), 2), weight(d({4, 3, kernel, kernel}))},
          [=](const Tensors& t) {
            return at::conv_transpose2d(t[0], t[1], {}, stride, padding, output_padding);
          }};
}

/// `count` numbers below `rows`.
Input numbers(int64_t rows, int64_t count, int64_t dim = -1) {
  return constant(torch::randint(0, rows, {count}), dim);
}
/// Rows travel between ranks, and their gradients.
Check rows_travel() { return Check{.traffic = 6}; }

std::vector<Sample> samples() {
  torch::manual_seed(79);
  const Check once{.double_backward = false};
  const Function select = [](const Tensors& t) { return t[0].index_select(0, t[1]).square(); };
  return {
      transposed("row_39_transposed_k2_s2", 2, 2, 0),
      transposed("row_40_transposed_k3_s1_p1", 3, 1, 1),
      transposed("row_41_transposed_k4_s2_p1", 4, 2, 1),
      transposed("row_42_transposed_k3_s2_p1_op1", 3, 2, 1, 1),
      of(
          "row_52_max_pool_with_indices", d({1, 2, 9, 6}), 2,
          [](const Tensor& t) { return std::get<1>(at::max_pool2d_with_indices(t, 2)); }, once),
      of("row_54_adaptive_average_pool", d({1, 2, 9, 6}), 2,
         [](const Tensor& t) {
           return at::adaptive_avg_pool2d(t, {4, 4});
         }),
      of("row_75_bicubic", d({1, 2, 9, 6}), 2,
         [](const Tensor& t) {
           return F::interpolate(t, F::InterpolateFuncOptions()
                                        .scale_factor(std::vector<double>{2, 2})
                                        .mode(torch::kBicubic)
                                        .align_corners(false));
         }),
      of("row_156_unfold", d({1, 2, 9, 6}), 2,
         [](const Tensor& t) {
           return at::im2col(t, {3, 3}, {1, 1}, {1, 1}, {1, 1});
         }),
      of("row_155_pixel_shuffle", d({1, 8, 7, 3}), 2,
         [](const Tensor& t) { return at::pixel_shuffle(t, 2); }),
      {"embedding_of_sharded_tokens",
       {weight(d({7, 3})), constant(torch::randint(0, 7, {2, 16}), 1)},
       [](const Tensors& t) { return at::embedding(t[0], t[1]); },
       once},
      of("row_154_fourier_of_another_dim", d({9, 8}), 0,
         [](const Tensor& t) { return at::fft_rfft(t, {}, 1).abs(); }),
      of(
          "fourier_of_the_sharded_dim", d({9, 8}), 0,
          [](const Tensor& t) { return at::fft_rfft(t, {}, 0).abs(); }, rows_travel()),
      of(
          "inverse_fourier_of_both_dims", d({9, 8}), 0,
          [](const Tensor& t) {
            return at::fft_irfft2(at::fft_rfft2(t) * 2, {{9, 8}});
          },
          Check{.traffic = 6}),
      {"index_select_by_a_cut_list",
       {sharded(d({16, 3}), 0), numbers(16, 11, 0)},
       select,
       rows_travel()},
      {"index_select_by_a_whole_list",
       {sharded(d({16, 3}), 0), numbers(16, 11)},
       select,
       rows_travel()},
      {"index_add_on_the_cut_dim",
       {sharded(d({16, 3}), 0), numbers(16, 11, 0), sharded(d({11, 3}), 0)},
       [](const Tensors& t) { return t[0].index_add(0, t[1], t[2]).square(); },
       rows_travel()},
      {"scatter_add_on_the_cut_dim",
       {sharded(d({16, 3}), 0), numbers(16, 11, 0), sharded(d({11, 3}), 0)},
       [](const Tensors& t) {
         return t[0].scatter_add(0, t[1].unsqueeze(1).expand({-1, 3}), t[2]).square();
       },
       rows_travel()},
  };
}
SHARD_SAMPLES(PhysicsEdges, samples());

}  // namespace
}  // namespace shard::testing::edge_cases
