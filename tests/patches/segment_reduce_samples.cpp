// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/segment_reduce.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor d(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); }
/// LibTorch's formula has no second derivative, and lengths cannot be enlarged.
Check once(double traffic = 6) {
  Check check{.traffic = traffic};
  check.double_backward = false;
  return check;
}

Sample reduced(const std::string& name, const std::string& how, const Tensor& data, int64_t dim,
               std::optional<at::Scalar> initial = {}, int64_t list_dim = -1) {
  return {name,
          {sharded(data, dim), constant(torch::tensor({3, 0, 7, 1, 0, 2}), list_dim)},
          [=](const Tensors& t) {
            return at::segment_reduce(t[0], how, t[1], {}, {}, 0, false, initial).square();
          },
          once()};
}

/// Every row has lengths of its own.
Sample along_columns(const std::string& name, const std::string& how, const Tensor& data,
                     int64_t dim) {
  const Tensor lengths = torch::tensor({3, 0, 4, 2, 1, 4, 7, 0, 0}).view({3, 3});
  return {name,
          {sharded(data, dim), constant(lengths)},
          [=](const Tensors& t) {
            TORCH_CHECK(t[0].size(0) == 3);  // of other sizes LibTorch reads beyond the lengths
            return at::segment_reduce(t[0], how, t[1], {}, {}, 1, false, 0.5).square();
          },
          once()};
}

std::vector<Sample> samples() {
  torch::manual_seed(210);
  return {
      reduced("sum", "sum", d({13, 3}), 0),
      reduced("mean", "mean", d({13, 3}), 0, 0.0),
      reduced("largest", "max", d({13, 3}), 0, -9.0),
      reduced("smallest", "min", d({13, 2}), 0, 9.0),
      reduced("product", "prod", d({13, 1}), 0),
      reduced("sums_of_one_dim", "sum", d({13}), 0),
      reduced("along_another_dim", "mean", d({13, 5}), 1, 0.0),
      reduced("by_cut_lengths", "sum", d({3, 13}).t(), 0, {}, 0),
      {"by_offsets",
       {sharded(d({13, 3}), 0), constant(torch::tensor({0, 4, 4, 13}))},
       [](const Tensors& t) { return at::segment_reduce(t[0], "sum", {}, {}, t[1], 0).square(); },
       once()},
      {"rows_that_no_segment_has",
       {sharded(d({13, 3}), 0), constant(torch::tensor({3, 0, 7}))},
       [](const Tensors& t) {
         return at::segment_reduce(t[0], "max", t[1], {}, {}, 0, true, 0.5).square();
       },
       once()},
      along_columns("columns_of_cut_rows", "sum", d({3, 7}), 0),
      along_columns("columns_cut", "max", d({3, 7}), 1),
      along_columns("columns_of_a_cut_last_dim", "mean", d({3, 7, 5}), 2),
      along_columns("columns_cut_of_three_dims", "prod", d({3, 7, 2}), 1),
      along_columns("columns_non_contiguous", "min", d({7, 3}).t(), 0),
      {"columns_by_offsets",
       {sharded(d({2, 7}), 0), constant(torch::tensor({0, 4, 4, 7, 0, 1, 5, 7}).view({2, 4}))},
       [](const Tensors& t) {
         TORCH_CHECK(t[0].size(0) == 2);
         return at::segment_reduce(t[0], "sum", {}, {}, t[1], 1).square();
       },
       once()},
  };
}
SHARD_SAMPLES(Segments, samples());

}  // namespace
}  // namespace shard::testing
