// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/max_pool3d_with_indices.h>
#include <ATen/ops/max_pool3d_with_indices_backward.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;
using Tensors = std::vector<Tensor>;

Tensor d(Sizes sizes) { return torch::randn(sizes, at::kDouble); }

struct Pool {
  Sizes kernel, stride, padding, dilation;
  bool ceil_mode = false;

  /// The gradient of the pooled squares with respect to what was pooled.
  Tensor operator()(const Tensor& x) const {
    const bool is_2d = kernel.size() == 2;
    const auto pool = is_2d ? &at::max_pool2d_with_indices : &at::max_pool3d_with_indices;
    const auto back =
        is_2d ? &at::max_pool2d_with_indices_backward : &at::max_pool3d_with_indices_backward;
    const auto [y, indices] = pool(x.detach(), kernel, stride, padding, dilation, ceil_mode);
    // Pooled again with a graph: the values that are brought back depend on x.
    const Tensor values = std::get<0>(pool(x, kernel, stride, padding, dilation, ceil_mode));
    return back(values.square(), x, kernel, stride, padding, dilation, ceil_mode, indices);
  }
};

Sample pooled(const std::string& name, const Tensor& x, int64_t dim, const Pool& pool) {
  return {name, {sharded(x, dim)}, [=](const Tensors& t) { return pool(t[0]); }};
}

std::vector<Sample> samples() {
  torch::manual_seed(240);
  const Pool halves{{2, 2}, {2, 2}, {0, 0}, {1, 1}};
  const Pool overlapping{{3, 3}, {1, 1}, {1, 1}, {1, 1}};
  const Pool wide{{3, 2}, {2, 1}, {1, 1}, {2, 1}, true};
  const Pool sparse{{2, 2}, {3, 3}, {0, 0}, {1, 1}};
  const Pool cubes{{2, 3, 2}, {2, 1, 1}, {0, 1, 1}, {1, 1, 1}};
  return {
      pooled("halves", d({2, 2, 16, 4}), 2, halves),
      pooled("overlapping", d({1, 2, 9, 5}), 2, overlapping),
      pooled("overlapping_columns", d({1, 2, 5, 9}), 3, overlapping),
      pooled("dilated_with_surplus", d({2, 1, 13, 6}), 2, wide),
      pooled("gaps_between_windows", d({1, 2, 11, 5}), 2, sparse),
      pooled("without_batch", d({2, 9, 5}), 1, overlapping),
      pooled("cut_batch", d({5, 2, 4, 4}), 0, overlapping),
      pooled("cut_channels", d({2, 5, 4, 4}), 1, halves),
      pooled("channels_last", d({2, 3, 8, 6}).contiguous(at::MemoryFormat::ChannelsLast), 2,
             overlapping),
      pooled("non_contiguous", d({1, 2, 5, 9}).transpose(2, 3), 2, overlapping),
      pooled("three_dims", d({1, 2, 8, 4, 5}), 2, cubes),
      pooled("three_dims_cut_inside", d({1, 2, 4, 7, 5}), 3, cubes),
      {"values_that_are_cut_otherwise",
       {sharded(d({2, 2, 4, 6}), 3), sharded(d({2, 2, 8, 12}), 2)},
       [=](const Tensors& t) {
         const auto indices = std::get<1>(at::max_pool2d_with_indices(t[1].detach(), {2, 2}));
         return at::max_pool2d_with_indices_backward(t[0], t[1], {2, 2}, {2, 2}, {0, 0}, {1, 1},
                                                     false, indices);
       }},
  };
}
SHARD_SAMPLES(MaxPoolBackward, samples());

TEST(MaxPoolBackward, IndicesOutsideTheirWindowsAreRefusedOnEveryRank) {
  run_ranks(2, [](World& world) {
    const Tensor x = scatter_tensor(torch::randn({1, 1, 8, 4}), 0, world.mesh(), {Shard(2)});
    const Tensor values = scatter_tensor(torch::randn({1, 1, 4, 2}), 0, world.mesh(), {Shard(2)});
    const Tensor indices = torch::arange(8).view({1, 1, 4, 2});  // of the upper half
    EXPECT_THROW(at::max_pool2d_with_indices_backward(values, x, {2, 2}, {2, 2}, {0, 0}, {1, 1},
                                                      false, indices),
                 SpecMismatch);
  });
}

}  // namespace
}  // namespace shard::testing
