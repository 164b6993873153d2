// SPDX-License-Identifier: Apache-2.0
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

const Check kOnce{.double_backward = false, .both_precisions = false};

Sample scaled(const std::string& name, int64_t dim, bool bicubic, double traffic = 0) {
  Check check = kOnce;
  check.traffic = traffic;
  return {name,
          {sharded(torch::randn({3, 8, 6, 6}, at::kDouble), dim)},
          [bicubic](const Tensors& t) {
            return bicubic ? at::_upsample_bicubic2d_aa(t[0], {4, 5}, false)
                           : at::_upsample_bilinear2d_aa(t[0], {3, 9}, false);
          },
          check};
}

Sample pooled(const std::string& name, int64_t dim, double traffic = 0) {
  Check check = kOnce;
  check.gradients = false;
  check.traffic = traffic;
  return {name,
          {constant(torch::randn({2, 8, 3, 3}, at::kDouble), dim),
           constant(torch::randn({2, 8, 7, 7}, at::kDouble), dim)},
          [](const Tensors& t) {
            const auto indices = std::get<1>(at::max_pool2d_with_indices(t[1], {3, 3}, {2, 2}));
            return at::max_pool2d_with_indices_backward(t[0], t[1], {3, 3}, {2, 2}, {0, 0}, {1, 1},
                                                        false, indices);
          },
          check};
}

std::vector<Sample> samples() {
  torch::manual_seed(370);
  return {
      scaled("bilinear_of_cut_channels", 1, false),
      scaled("bicubic_of_cut_channels", 1, true),
      scaled("bilinear_of_cut_rows", 2, false, 2.25),
      scaled("bicubic_of_cut_columns", 3, true, 2.25),
      pooled("gradient_of_max_pool", 1),
      pooled("gradient_of_max_pool_of_cut_rows", 2, 2.25),
  };
}
SHARD_SAMPLES(WholePlanes, samples());

Sample random_sample(Random& r) {
  const auto sizes = r.sizes(4, 1, 6);
  const int64_t height = r.integer(1, 7);
  const int64_t width = r.integer(1, 7);
  return {"random",
          {sharded(r.tensor(sizes), r.integer(0, 1))},
          [=](const Tensors& t) {
            return at::_upsample_bilinear2d_aa(t[0], {height, width}, false);
          },
          kOnce};
}
SHARD_RANDOM_SAMPLES(RandomWholePlanes, random_sample);

TEST(WholePlanes, ASinglePlaneThatIsCutIsRefused) {
  run_ranks(2, [](World& world) {
    const auto x = scatter_tensor(torch::randn({1, 1, 8, 6}), 0, world.mesh(), {Shard(2)});
    EXPECT_THROW(at::_upsample_bilinear2d_aa(x, {4, 3}, false), MissingShardPatch);
  });
}

}  // namespace
}  // namespace shard::testing
