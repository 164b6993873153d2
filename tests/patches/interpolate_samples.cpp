// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/rank_errors.h>
#include <support/samples.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Options = F::InterpolateFuncOptions;

Options by_factor(std::vector<double> factor) { return Options().scale_factor(factor); }
Options to_size(std::vector<int64_t> size) { return Options().size(size); }

Sample interpolate_case(std::string name, Options options,
                        std::vector<int64_t> sizes = {1, 2, 9, 5}, int64_t dim = 2,
                        torch::Dtype dtype = torch::kFloat) {
  return {std::move(name), {sharded(torch::randn(sizes, dtype), dim)}, [options](const Tensors& t) {
            // Linear: its double backward shows behind something that is not.
            const Tensor y = F::interpolate(t[0], options);
            return y * (y + 1);
          }};
}

std::vector<Sample> nearest_cases() {
  torch::manual_seed(10);
  const auto nearest = [](Options options) { return options.mode(torch::kNearest); };
  const auto exact = [](Options options) { return options.mode(torch::kNearestExact); };
  return {
      interpolate_case("times_2", nearest(by_factor({2, 2}))),
      interpolate_case("times_3", nearest(by_factor({3, 3}))),
      interpolate_case("times_1_5", nearest(by_factor({1.5, 1.5}))),
      interpolate_case("times_0_5", nearest(by_factor({0.5, 0.5}))),
      interpolate_case("times_1_of_the_sharded_dim", nearest(by_factor({1, 2}))),
      interpolate_case("to_an_odd_size", nearest(to_size({19, 7}))),
      interpolate_case("to_a_smaller_size", nearest(to_size({4, 3}))),
      interpolate_case("to_one_row", nearest(to_size({1, 5}))),
      interpolate_case("factor_that_rounds_to_twice_the_size", nearest(by_factor({2.3, 2.3})),
                       {1, 2, 3, 5}),
      interpolate_case("factor_that_keeps_the_size", nearest(by_factor({1.08, 1.08}))),
      interpolate_case("sharded_by_columns", nearest(by_factor({1.5, 2})), {1, 2, 4, 9}, 3),
      interpolate_case("batch_shard", nearest(by_factor({2, 2})), {5, 2, 4, 4}, 0),
      interpolate_case("channel_shard", nearest(by_factor({2, 2})), {1, 5, 4, 4}, 1),
      interpolate_case("double_precision", nearest(to_size({13, 8})), {1, 2, 9, 5}, 2,
                       torch::kDouble),
      interpolate_case("one_dim", nearest(by_factor({1.7})), {2, 3, 9}),
      interpolate_case("three_dims", nearest(by_factor({2, 2, 1})), {1, 2, 6, 3, 3}),
      interpolate_case("exact_times_2", exact(by_factor({2, 2}))),
      interpolate_case("exact_times_1_5", exact(by_factor({1.5, 1.5}))),
      interpolate_case("exact_to_an_odd_size", exact(to_size({14, 7}))),
      interpolate_case("exact_one_dim", exact(to_size({13})), {2, 3, 9}),
      interpolate_case("exact_three_dims", exact(by_factor({1.5, 2, 1})), {1, 2, 6, 3, 3}),
  };
}
SHARD_SAMPLES(InterpolateNearest, nearest_cases());

std::vector<Sample> linear_cases() {
  torch::manual_seed(11);
  const auto bilinear = [](Options options, bool align = false) {
    return options.mode(torch::kBilinear).align_corners(align);
  };
  const auto linear = [](Options options, bool align) {
    return options.mode(torch::kLinear).align_corners(align);
  };
  const auto trilinear = [](Options options, bool align) {
    return options.mode(torch::kTrilinear).align_corners(align);
  };
  return {
      interpolate_case("times_2", bilinear(by_factor({2, 2}))),
      interpolate_case("times_2_aligned_corners", bilinear(by_factor({2, 2}), true)),
      interpolate_case("times_3", bilinear(by_factor({3, 3}))),
      interpolate_case("times_1_5", bilinear(by_factor({1.5, 1.5}))),
      interpolate_case("times_0_5", bilinear(by_factor({0.5, 0.5}))),
      interpolate_case("different_factors", bilinear(by_factor({2, 1.5}))),
      interpolate_case("to_the_size_of_a_skip_connection", bilinear(to_size({19, 11}))),
      interpolate_case("to_its_own_size", bilinear(to_size({9, 5}))),
      interpolate_case("to_a_smaller_size", bilinear(to_size({4, 3}))),
      interpolate_case("to_one_row", bilinear(to_size({1, 5}))),
      interpolate_case("to_an_odd_size_aligned_corners", bilinear(to_size({14, 7}), true)),
      interpolate_case("only_columns_of_row_shards", bilinear(by_factor({1, 2}))),
      interpolate_case("sharded_by_columns", bilinear(by_factor({1.5, 2})), {1, 2, 4, 9}, 3),
      interpolate_case("batch_shard", bilinear(by_factor({2, 2})), {5, 2, 4, 4}, 0),
      interpolate_case("channel_shard", bilinear(by_factor({2, 2})), {1, 5, 4, 4}, 1),
      interpolate_case("double_precision", bilinear(to_size({13, 8})), {1, 2, 9, 5}, 2,
                       torch::kDouble),
      interpolate_case("one_dim", linear(by_factor({1.7}), false), {2, 3, 9}),
      interpolate_case("one_dim_aligned_corners", linear(to_size({5}), true), {2, 3, 9}),
      interpolate_case("three_dims", trilinear(by_factor({2, 2, 1}), false), {1, 2, 6, 3, 3}),
      interpolate_case("three_dims_aligned_corners", trilinear(to_size({7, 5, 3}), true),
                       {1, 2, 6, 3, 3}),
      {"upsample_module",
       {sharded(torch::randn({1, 2, 9, 5}), 2)},
       [](const Tensors& t) {
         torch::nn::Upsample up(torch::nn::UpsampleOptions()
                                    .scale_factor(std::vector<double>{2, 2})
                                    .mode(torch::kBilinear)
                                    .align_corners(false));
         return up->forward(t[0]);
       }},
      {"channels_last",
       {sharded(torch::randn({2, 4, 9, 6}).contiguous(torch::MemoryFormat::ChannelsLast), 2)},
       [](const Tensors& t) {
         return F::interpolate(t[0], Options()
                                         .size(std::vector<int64_t>{19, 12})
                                         .mode(torch::kBilinear)
                                         .align_corners(false));
       }},
  };
}
SHARD_SAMPLES(InterpolateLinear, linear_cases());

/// Any output size, larger or smaller, one to three spatial dims.
Sample random_sample(Random& r) {
  const int64_t spatial = r.integer(1, 3);
  auto sizes = r.sizes(spatial, 1, 7);
  const auto to = r.sizes(spatial, 1, 12);
  sizes.insert(sizes.begin(), {r.integer(1, 2), 2});
  const int64_t dim = r.integer(0, spatial + 1);
  const bool linear = r.coin();
  const bool corners = r.coin();
  return {"random", {sharded(r.tensor(sizes), dim)}, [=](const std::vector<at::Tensor>& t) {
            if (spatial == 1) {
              return linear ? at::upsample_linear1d(t[0], to, corners)
                            : at::upsample_nearest1d(t[0], to);
            }
            if (spatial == 2) {
              return linear ? at::upsample_bilinear2d(t[0], to, corners)
                            : at::upsample_nearest2d(t[0], to);
            }
            return linear ? at::upsample_trilinear3d(t[0], to, corners)
                          : at::upsample_nearest3d(t[0], to);
          }};
}
SHARD_RANDOM_SAMPLES(RandomInterpolate, random_sample);

/// LibTorch decides rows in floating point: every size, both precisions, large images too (another
/// kernel there).
TEST(Interpolate, RowsAreThoseOfLibTorchForEverySize) {
  run_ranks(2, [](World& world) {
    const auto mesh = world.mesh();
    for (const auto dtype : {torch::kFloat, torch::kDouble}) {
      for (const int64_t columns : {2, 150}) {
        const Tensor whole = torch::arange(11 * columns, dtype).view({1, 1, 11, columns});
        const Tensor x = scatter_tensor(whole, 0, mesh, {Shard(2)}, {4, 7});
        for (int64_t size = 1; size <= 40; ++size) {
          const std::vector<int64_t> target{size, columns};
          EXPECT_TRUE(torch::equal(ShardTensor(torch::upsample_nearest2d(x, target)).full(),
                                   torch::upsample_nearest2d(whole, target)))
              << size << " " << columns << " " << dtype;
          EXPECT_TRUE(torch::equal(ShardTensor(torch::_upsample_nearest_exact2d(x, target)).full(),
                                   torch::_upsample_nearest_exact2d(whole, target)))
              << size << " " << columns << " " << dtype;
        }
      }
    }
  });
}

TEST(Interpolate, RowsAreThoseOfLibTorchForEveryFactor) {
  run_ranks(2, [](World& world) {
    const auto mesh = world.mesh();
    const Tensor whole = torch::arange(11 * 5, torch::kFloat).view({1, 1, 11, 5});
    const Tensor x = scatter_tensor(whole, 0, mesh, {Shard(2)}, {4, 7});
    for (double factor = 0.3; factor < 4; factor += 0.0729) {
      const std::vector<double> factors{factor, factor};
      EXPECT_TRUE(
          torch::equal(ShardTensor(torch::upsample_nearest2d(x, std::nullopt, factors)).full(),
                       torch::upsample_nearest2d(whole, std::nullopt, factors)))
          << factor;
      EXPECT_LE(relative_error(
                    ShardTensor(torch::upsample_bilinear2d(x, std::nullopt, false, factors)).full(),
                    torch::upsample_bilinear2d(whole, std::nullopt, false, factors)),
                1e-6)
          << factor;
    }
  });
}

TEST(Interpolate, NearestTimes2SendsNothingAndBilinearOneExchange) {
  run_ranks(2, [](World& world) {
    const auto mesh = world.mesh();
    const Tensor x = scatter_tensor(torch::randn({1, 2, 9, 5}), 0, mesh, {Shard(2)});
    const CommCounter counter;
    torch::upsample_nearest2d(x, {18, 10});
    EXPECT_EQ(counter.calls(), 0);
    torch::upsample_bilinear2d(x, {18, 10}, false);
    EXPECT_EQ(counter.calls("exchange"), 1);
    EXPECT_EQ(counter.calls(), 1);
  });
}

TEST(Interpolate, RowsBelongToTheOwnerOfTheirPlaceInTheInput) {
  run_ranks(3, [](World& world) {
    const Tensor x =
        scatter_tensor(torch::randn({1, 2, 9, 5}), 0, world.mesh(), {Shard(2)}, {4, 0, 5});
    const auto partition = [&](int64_t rows) {
      return ShardTensor(torch::upsample_bilinear2d(x, {rows, 5}, false)).spec().partition();
    };
    EXPECT_EQ(partition(18), (Partition{8, 0, 10}));
    EXPECT_EQ(partition(19), (Partition{9, 0, 10}));
    EXPECT_EQ(partition(1), (Partition{1, 0, 0}));
  });
}

TEST(Interpolate, SizeZeroIsRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "positive spatial sizes", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(torch::randn({1, 2, 6, 6}), 0, mesh, {Shard(2)});
    return [x] { torch::upsample_nearest2d(x, {0, 12}); };
  });
}

}  // namespace
}  // namespace shard::testing
