// SPDX-License-Identifier: Apache-2.0
// Adaptive pooling, and the area interpolation made of it, over sharded inputs equals the plain
// ops: windows that boundaries cut, windows larger than shards, ties, NaN, what is sent.
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/rank_errors.h>
#include <support/samples.h>
#include <support/sharded_check.h>
#include <torch/torch.h>

#include <cmath>

namespace shard::testing {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

Tensor field(std::vector<int64_t> sizes) { return torch::randn(sizes); }

/// Pooling is (piecewise) linear: its double backward shows behind something that is not.
Tensor bent(const Tensor& y) { return y * (y + 1); }

Sample average_case(std::string name, std::vector<int64_t> size, int64_t rows = 9,
                    int64_t dim = 2) {
  return {std::move(name), {sharded(field({2, 3, rows, 6}), dim)}, [size](const Tensors& t) {
            return bent(torch::adaptive_avg_pool2d(t[0], size));
          }};
}
Sample max_case(std::string name, std::vector<int64_t> size, int64_t rows = 9, int64_t dim = 2) {
  return {std::move(name), {sharded(field({2, 3, rows, 6}), dim)}, [size](const Tensors& t) {
            return bent(std::get<0>(torch::adaptive_max_pool2d(t[0], size)));
          }};
}

std::vector<Sample> average_cases() {
  torch::manual_seed(31);
  return {
      average_case("to_a_divisor", {3, 2}, 12),
      average_case("overlapping_windows", {4, 4}),
      average_case("larger_than_the_input", {11, 6}, 7),
      average_case("to_its_own_size", {9, 6}),
      average_case("one_row_of_windows", {1, 3}),
      average_case("to_one_point", {1, 1}),
      average_case("only_columns", {9, 2}),
      average_case("sharded_by_columns", {2, 4}, 5, 3),
      average_case("channel_shard", {2, 2}, 6, 1),
      average_case("batch_shard", {2, 2}, 6, 0),
      average_case("one_row", {3, 2}, 1),
      average_case("more_ranks_than_rows", {2, 4}, 3),
      {"unbatched",
       {sharded(field({3, 9, 6}), 1)},
       [](const Tensors& t) {
         return bent(torch::adaptive_avg_pool2d(t[0], {4, 2}));
       }},
      {"one_dim",
       {sharded(field({2, 3, 11}), 2)},
       [](const Tensors& t) { return bent(torch::adaptive_avg_pool1d(t[0], 4)); }},
      {"three_dims",
       {sharded(field({2, 2, 7, 4, 3}), 2)},
       [](const Tensors& t) {
         return bent(torch::adaptive_avg_pool3d(t[0], {3, 2, 2}));
       }},
      {"three_dims_last",
       {sharded(field({1, 2, 2, 3, 7}), 4)},
       [](const Tensors& t) {
         return bent(torch::adaptive_avg_pool3d(t[0], {1, 2, 5}));
       }},
      {"channels_last",
       {sharded(field({2, 4, 9, 6}).contiguous(torch::MemoryFormat::ChannelsLast), 2)},
       [](const Tensors& t) {
         return bent(torch::adaptive_avg_pool2d(t[0], {4, 3}));
       }},
      {"non_contiguous",
       {sharded(field({2, 4, 6, 9}).transpose(2, 3), 2)},
       [](const Tensors& t) {
         return bent(torch::adaptive_avg_pool2d(t[0], {4, 3}));
       }},
      {"module_that_keeps_a_dim",
       {sharded(field({1, 2, 7, 5}), 2)},
       [](const Tensors& t) {
         torch::nn::AdaptiveAvgPool2d pool(torch::nn::AdaptiveAvgPool2dOptions({3, std::nullopt}));
         return bent(pool->forward(t[0]));
       }},
  };
}
SHARD_SAMPLES(AdaptiveAvgPool, average_cases());

std::vector<Sample> max_cases() {
  torch::manual_seed(32);
  return {
      max_case("to_a_divisor", {3, 2}, 12),
      max_case("overlapping_windows", {4, 4}),
      max_case("larger_than_the_input", {11, 6}, 7),
      max_case("one_row_of_windows", {1, 3}),
      max_case("to_one_point", {1, 1}),
      max_case("sharded_by_columns", {2, 4}, 5, 3),
      max_case("channel_shard", {2, 2}, 6, 1),
      max_case("batch_shard", {2, 2}, 6, 0),
      max_case("more_ranks_than_rows", {2, 4}, 3),
      {"unbatched",
       {sharded(field({3, 9, 6}), 1)},
       [](const Tensors& t) {
         return bent(std::get<0>(torch::adaptive_max_pool2d(t[0], {4, 2})));
       }},
      {"one_dim",
       {sharded(field({2, 3, 11}), 2)},
       [](const Tensors& t) { return bent(std::get<0>(torch::adaptive_max_pool1d(t[0], 4))); }},
      {"three_dims",
       {sharded(field({2, 2, 7, 4, 3}), 2)},
       [](const Tensors& t) {
         return bent(std::get<0>(torch::adaptive_max_pool3d(t[0], {3, 2, 2})));
       }},
      {"ties_after_relu",
       {sharded(field({1, 2, 7, 6}), 2)},
       [](const Tensors& t) {
         return bent(std::get<0>(torch::adaptive_max_pool2d(t[0].relu(), {3, 2})));
       }},
      {"modules",
       {sharded(field({1, 2, 7, 5}), 2)},
       [](const Tensors& t) {
         return bent(torch::nn::AdaptiveMaxPool2d(torch::nn::AdaptiveMaxPool2dOptions({3, 2}))
                         ->forward(t[0]));
       }},
  };
}
SHARD_SAMPLES(AdaptiveMaxPool, max_cases());

template <class Pool>
Sample index_case(std::string name, Tensor x, int64_t dim, Pool pool) {
  Check forward_only;
  forward_only.gradients = false;
  return {std::move(name),
          {sharded(std::move(x), dim)},
          [pool](const Tensors& t) { return std::get<1>(pool(t[0])); },
          forward_only};
}

std::vector<Sample> index_cases() {
  torch::manual_seed(33);
  const auto pool2d = [](const Tensor& x) { return torch::adaptive_max_pool2d(x, {4, 3}); };
  const auto pool3d = [](const Tensor& x) { return torch::adaptive_max_pool3d(x, {2, 3, 2}); };
  const Tensor with_nan = field({1, 2, 7, 7});
  with_nan.slice(1, 0, 1).slice(3, 0, 4, 3).fill_(NAN);
  return {
      index_case("rows", field({2, 3, 9, 6}), 2, pool2d),
      index_case("columns", field({2, 3, 6, 9}), 3, pool2d),
      index_case("channels", field({2, 3, 6, 9}), 1, pool2d),
      index_case("one_dim", field({2, 3, 11}), 2,
                 [](const Tensor& x) { return torch::adaptive_max_pool1d(x, 4); }),
      index_case("three_dims_first", field({1, 2, 7, 4, 5}), 2, pool3d),
      index_case("three_dims_middle", field({1, 2, 4, 7, 5}), 3, pool3d),
      index_case("ties_of_rows_name_the_first", torch::ones({1, 1, 7, 5}), 2, pool2d),
      index_case("ties_of_columns_name_the_first", torch::ones({1, 1, 5, 7}), 3, pool2d),
      index_case("nan_in_rows", with_nan, 2, pool2d),
      index_case("nan_in_columns", with_nan, 3, pool2d),
  };
}
SHARD_SAMPLES(AdaptiveMaxPoolIndices, index_cases());

Sample area_case(std::string name, std::vector<int64_t> sizes, int64_t dim,
                 std::vector<int64_t> to) {
  return {
      std::move(name), {sharded(field(std::move(sizes)), dim)}, [to](const Tensors& t) {
        return bent(F::interpolate(t[0], F::InterpolateFuncOptions().size(to).mode(torch::kArea)));
      }};
}
std::vector<Sample> area_cases() {
  torch::manual_seed(34);
  return {
      area_case("half", {1, 2, 10, 6}, 2, {5, 3}),
      area_case("odd", {1, 2, 9, 5}, 2, {4, 3}),
      area_case("enlarged", {1, 2, 5, 4}, 2, {8, 7}),
      area_case("one_dim", {2, 3, 11}, 2, {4}),
      area_case("three_dims", {1, 2, 7, 4, 3}, 2, {3, 2, 2}),
  };
}
SHARD_SAMPLES(AreaInterpolation, area_cases());

/// Any output size, larger or smaller, one to three spatial dims.
Sample random_sample(Random& r) {
  const int64_t spatial = r.integer(1, 3);
  auto sizes = r.sizes(spatial, 1, 7);
  const auto to = r.sizes(spatial, 1, 9);
  sizes.insert(sizes.begin(), {r.integer(1, 2), 2});
  const int64_t dim = r.integer(0, spatial + 1);
  const bool averages = r.coin();
  return {"random", {sharded(r.tensor(sizes), dim)}, [=](const Tensors& t) {
            if (spatial == 1) {
              return averages ? at::adaptive_avg_pool1d(t[0], to)
                              : std::get<0>(at::adaptive_max_pool1d(t[0], to));
            }
            if (spatial == 2) {
              return averages ? at::adaptive_avg_pool2d(t[0], to)
                              : std::get<0>(at::adaptive_max_pool2d(t[0], to));
            }
            return averages ? at::adaptive_avg_pool3d(t[0], to)
                            : std::get<0>(at::adaptive_max_pool3d(t[0], to));
          }};
}
SHARD_RANDOM_SAMPLES(RandomAdaptivePooling, random_sample);

TEST(AdaptivePooling, WindowsThatNoBoundaryCutsSendNothing) {
  run_ranks(2, [](World& world) {
    const Tensor x = scatter_tensor(field({1, 2, 12, 6}), 0, world.mesh(), {Shard(2)}, {8, 4});
    const CommCounter counter;
    const Tensor y = torch::adaptive_avg_pool2d(x, {6, 3});
    torch::adaptive_max_pool2d(x, {3, 2});
    EXPECT_EQ(counter.calls(), 0) << counter.table();
    EXPECT_EQ(ShardTensor(y).spec().partition(), (Partition{4, 2}));
  });
}

/// A window over all rows is one row of partial results a rank.
TEST(AdaptivePooling, LargeWindowsSendOneRowEach) {
  run_ranks(3, [](World& world) {
    const Tensor x = scatter_tensor(field({1, 2, 60, 6}), 0, world.mesh(), {Shard(2)});
    const CommCounter counter;
    torch::adaptive_avg_pool2d(x, {1, 6});
    EXPECT_EQ(counter.calls("exchange"), 1);
    EXPECT_EQ(counter.calls(), 1) << counter.table();
    EXPECT_LE(counter.bytes(), static_cast<int64_t>(2 * 2 * 6 * sizeof(float)));
  });
}

TEST(AdaptivePooling, SizeZeroIsRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "positive spatial sizes", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(field({1, 2, 6, 6}), 0, mesh, {Shard(2)});
    return [x] { torch::adaptive_avg_pool2d(x, {0, 2}); };
  });
}

}  // namespace
}  // namespace shard::testing
