// SPDX-License-Identifier: Apache-2.0
// Fields cut along two or three spatial dims at once into uneven pieces, some of them empty: what a
// window needs from across a corner belongs to a rank that is no neighbour along any one dim.
#include <gtest/gtest.h>
#include <shard/launch.h>
#include <shard/testing.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

namespace nn = torch::nn;

struct Cuts {
  const char* name;
  std::vector<Partition> partitions;  ///< one a mesh dim
};

/// 16 rows and 9 columns on 2 x 2 ranks.
const std::vector<Cuts>& cuts_of_images() {
  static const std::vector<Cuts> all{{"uneven", {{11, 5}, {3, 6}}},
                                     {"one row and one column", {{15, 1}, {1, 8}}},
                                     {"no columns on the second", {{5, 11}, {9, 0}}},
                                     {"all on one rank", {{0, 16}, {0, 9}}}};
  return all;
}

/// `net` on an image whose rows and columns are cut: output and all gradients equal plain LibTorch.
void expect_equal_on_images(const std::function<nn::Sequential()>& make) {
  for (const auto& cuts : cuts_of_images()) {
    run_ranks(4, [&](World& world) {
      manual_seed(6);
      const auto mesh = world.mesh({{"rows", 2}, {"columns", 2}});
      auto net = make();
      net->to(at::kDouble);
      const auto x = scatter_tensor(torch::randn({2, 3, 16, 9}, at::kDouble), 0, mesh,
                                    {Shard(2), Shard(3)}, cuts.partitions);
      const auto report = numerical_shard_tensor_check(mesh, net, {x});
      EXPECT_TRUE(report.ok()) << cuts.name << "\n" << report.text();
    });
  }
}

nn::Conv2dOptions conv(int64_t kernel, int64_t padding) {
  return nn::Conv2dOptions(3, 2, kernel).padding(padding);
}

TEST(Corners, OfConvolutions) {
  expect_equal_on_images([] { return nn::Sequential(nn::Conv2d(conv(3, 1))); });
  expect_equal_on_images([] { return nn::Sequential(nn::Conv2d(conv(5, 2))); });
}

TEST(Corners, OfStridedAndDilatedConvolutions) {
  expect_equal_on_images([] { return nn::Sequential(nn::Conv2d(conv(3, 1).stride(2))); });
  expect_equal_on_images([] { return nn::Sequential(nn::Conv2d(conv(4, 0).stride({3, 1}))); });
  expect_equal_on_images([] { return nn::Sequential(nn::Conv2d(conv(3, 2).dilation(2))); });
}

TEST(Corners, OfPaddedConvolutions) {
  expect_equal_on_images(
      [] { return nn::Sequential(nn::Conv2d(conv(3, 1).padding_mode(torch::kCircular))); });
  expect_equal_on_images(
      [] { return nn::Sequential(nn::Conv2d(conv(5, 2).padding_mode(torch::kReflect))); });
}

TEST(Corners, OfPooling) {
  expect_equal_on_images(
      [] { return nn::Sequential(nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1))); });
  expect_equal_on_images(
      [] { return nn::Sequential(nn::AvgPool2d(nn::AvgPool2dOptions(3).stride(1).padding(1))); });
}

TEST(Corners, OfInterpolation) {
  expect_equal_on_images([] {
    return nn::Sequential(nn::Upsample(nn::UpsampleOptions()
                                           .scale_factor(std::vector<double>{2, 1.5})
                                           .mode(torch::kBilinear)
                                           .align_corners(false)));
  });
}

TEST(Corners, OfNormalization) {
  expect_equal_on_images([] { return nn::Sequential(nn::GroupNorm(nn::GroupNormOptions(3, 3))); });
  expect_equal_on_images([] {
    return nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({16, 9})));
  });
}

/// 2 x 2 x 2 ranks: the corner of a box has seven owners.
TEST(Corners, OfVolumes) {
  run_ranks(8, [](World& world) {
    manual_seed(8);
    const auto mesh = world.mesh({{"depth", 2}, {"rows", 2}, {"columns", 2}});
    nn::Conv3d net(nn::Conv3dOptions(2, 2, {3, 2, 5}).padding({1, 0, 2}).stride({1, 2, 1}));
    net->to(at::kDouble);
    const auto x = scatter_tensor(torch::randn({1, 2, 5, 6, 7}, at::kDouble), 0, mesh,
                                  {Shard(2), Shard(3), Shard(4)},
                                  std::vector<Partition>{{4, 1}, {1, 5}, {4, 3}});
    const auto report = numerical_shard_tensor_check(mesh, net, {x});
    EXPECT_TRUE(report.ok()) << report.text();
  });
}

}  // namespace
}  // namespace shard::testing
