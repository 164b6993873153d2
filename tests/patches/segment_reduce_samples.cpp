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
  };
}
SHARD_SAMPLES(Segments, samples());

}  // namespace
}  // namespace shard::testing
