// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/rank_errors.h>
#include <support/samples.h>
#include <support/sharded_check.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using MaxOptions = F::MaxPool2dFuncOptions;
using AvgOptions = F::AvgPool2dFuncOptions;

/// Distinct values: no ties, no double backward to compare at kinks.
Tensor field(std::vector<int64_t> sizes) { return torch::randn(sizes); }

/// Pooling is (piecewise) linear: its double backward shows behind something that is not.
Tensor bent(const Tensor& y) { return y * (y + 1); }

Sample max_case(std::string name, MaxOptions options, int64_t rows = 9, int64_t dim = 2) {
  return {std::move(name), {sharded(field({2, 3, rows, 6}), dim)}, [options](const Tensors& t) {
            return bent(F::max_pool2d(t[0], options));
          }};
}
Sample avg_case(std::string name, AvgOptions options, int64_t rows = 9, int64_t dim = 2) {
  return {std::move(name), {sharded(field({2, 3, rows, 6}), dim)}, [options](const Tensors& t) {
            return bent(F::avg_pool2d(t[0], options));
          }};
}

std::vector<Sample> max_cases() {
  torch::manual_seed(6);
  return {
      max_case("kernel_2_stride_2_odd_shards", MaxOptions(2), 10),
      max_case("resnet_kernel_3_stride_2_padding_1", MaxOptions(3).stride(2).padding(1), 10),
      max_case("kernel_2_stride_2_padding_1", MaxOptions(2).padding(1), 8),
      max_case("tuple_kernel_and_stride_as_int", MaxOptions({2, 2}).stride(2), 8),
      max_case("tuple_of_different_values", MaxOptions({3, 2}).stride({1, 2}).padding({1, 0})),
      max_case("dilation_2", MaxOptions(2).stride(2).dilation(2), 10),
      max_case("ceil_mode", MaxOptions(3).stride(2).ceil_mode(true), 10),
      max_case("ceil_mode_and_padding", MaxOptions(3).stride(2).padding(1).ceil_mode(true), 9),
      max_case("stride_larger_than_kernel", MaxOptions(2).stride(3), 11),
      max_case("windows_larger_than_shards", MaxOptions(5).stride(1).padding(2), 7),
      max_case("one_row_a_rank", MaxOptions(3).stride(1).padding(1), 4),
      max_case("sharded_by_columns", MaxOptions(3).stride(2).padding(1), 5, 3),
      max_case("channel_shard", MaxOptions(2), 6, 1),
      max_case("batch_shard", MaxOptions(2), 6, 0),
      {"unbatched",
       {sharded(field({3, 9, 6}), 1)},
       [](const Tensors& t) { return F::max_pool2d(t[0], MaxOptions(3).stride(2)); }},
      {"unbatched_channel_shard",
       {sharded(field({3, 9, 6}), 0)},
       [](const Tensors& t) { return F::max_pool2d(t[0], MaxOptions(3).stride(2)); }},
      {"all_values_negative",
       {sharded(field({1, 2, 8, 4}) - 10, 2)},
       [](const Tensors& t) { return F::max_pool2d(t[0], MaxOptions(3).padding(1)); }},
      {"one_dim",
       {sharded(field({2, 3, 11}), 2)},
       [](const Tensors& t) { return bent(torch::max_pool1d(t[0], 3, 2, 1)); }},
      {"three_dims",
       {sharded(field({1, 2, 9, 4, 4}), 2)},
       [](const Tensors& t) { return bent(torch::max_pool3d(t[0], 3, 2, 1)); }},
      {"modules",
       {sharded(field({1, 2, 12, 8}), 2)},
       [](const Tensors& t) {
         return torch::nn::Sequential(torch::nn::MaxPool2d(2), torch::nn::AvgPool2d(2))
             ->forward(t[0]);
       }},
      {"channels_last",
       {sharded(field({2, 4, 9, 6}).contiguous(torch::MemoryFormat::ChannelsLast), 2)},
       [](const Tensors& t) { return F::max_pool2d(t[0], MaxOptions(3).stride(2).padding(1)); }},
  };
}
SHARD_SAMPLES(MaxPool, max_cases());

std::vector<Sample> average_cases() {
  torch::manual_seed(7);
  return {
      avg_case("kernel_2_stride_2_padding_1", AvgOptions(2).padding(1), 8),
      avg_case("blur_kernel_3_stride_1_padding_1", AvgOptions(3).stride(1).padding(1)),
      avg_case("odd_shards", AvgOptions(2), 10),
      avg_case("padding_not_counted", AvgOptions(3).stride(2).padding(1).count_include_pad(false)),
      avg_case("ceil_mode", AvgOptions(3).stride(2).ceil_mode(true), 10),
      avg_case("ceil_mode_padding_counted", AvgOptions(3).stride(2).padding(1).ceil_mode(true), 10),
      avg_case("ceil_mode_padding_not_counted",
               AvgOptions(3).stride(2).padding(1).ceil_mode(true).count_include_pad(false), 10),
      avg_case("divisor_override", AvgOptions(3).stride(2).padding(1).divisor_override(5)),
      avg_case("rectangular", AvgOptions({4, 3}).stride({2, 1}).padding({2, 1})),
      avg_case("sharded_by_columns", AvgOptions(3).stride(2).padding(1).count_include_pad(false), 5,
               3),
      avg_case("channel_shard", AvgOptions(2), 6, 1),
      avg_case("windows_larger_than_shards", AvgOptions(5).stride(1).padding(2), 7),
      {"one_dim",
       {sharded(field({2, 3, 11}), 2)},
       [](const Tensors& t) { return bent(torch::avg_pool1d(t[0], 3, 2, 1, true, false)); }},
      {"three_dims",
       {sharded(field({1, 2, 9, 4, 4}), 2)},
       [](const Tensors& t) { return bent(torch::avg_pool3d(t[0], 3, 2, 1, false, false)); }},
      {"double_precision",
       {sharded(field({1, 2, 9, 5}).to(torch::kDouble), 2)},
       [](const Tensors& t) { return bent(torch::avg_pool2d(t[0], 3, 2, 1, true, false)); }},
      {"unbatched",
       {sharded(field({3, 9, 6}), 1)},
       [](const Tensors& t) { return bent(torch::avg_pool2d(t[0], 3, 1, 1)); }},
  };
}
SHARD_SAMPLES(AvgPool, average_cases());

/// Values and indices as one tensor: indices are exact in float here.
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
  torch::manual_seed(8);
  const auto pool2d = [](const Tensor& x) { return torch::max_pool2d_with_indices(x, 3, 2, 1); };
  const auto dilated = [](const Tensor& x) {
    return torch::max_pool2d_with_indices(x, 2, 1, 1, 2);
  };
  return {
      index_case("rows", field({2, 3, 9, 6}), 2, pool2d),
      index_case("columns", field({2, 3, 6, 9}), 3, pool2d),
      index_case("channels", field({2, 3, 6, 9}), 1, pool2d),
      index_case("dilated", field({2, 3, 9, 7}), 2, dilated),
      index_case("one_dim", field({2, 3, 11}), 2,
                 [](const Tensor& x) { return torch::max_pool1d_with_indices(x, 3, 2, 1); }),
      index_case("three_dims_first", field({1, 2, 7, 4, 5}), 2,
                 [](const Tensor& x) { return torch::max_pool3d_with_indices(x, 2, 2, 1); }),
      index_case("three_dims_middle", field({1, 2, 4, 7, 5}), 3,
                 [](const Tensor& x) { return torch::max_pool3d_with_indices(x, 2, 2, 1); }),
      index_case("ties_name_the_first", torch::ones({1, 1, 8, 4}), 2, pool2d),
      index_case("nothing_but_minus_infinity", torch::full({1, 1, 8, 4}, -INFINITY), 2, pool2d),
  };
}
SHARD_SAMPLES(MaxPoolIndices, index_cases());

/// Any window in one to three spatial dims.
Sample random_sample(Random& r) {
  const int64_t spatial = r.integer(1, 3);
  const auto kernel = r.sizes(spatial, 1, 4);
  const auto stride = r.sizes(spatial, 1, 3);
  auto padding = r.sizes(spatial, 0, 2);
  std::vector<int64_t> sizes{r.integer(1, 2), 2};
  for (size_t i = 0; i < kernel.size(); ++i) {
    padding[i] = std::min(padding[i], kernel[i] / 2);
    sizes.push_back(kernel[i] + r.integer(0, 7));
  }
  const bool ceil = r.coin();
  const bool averages = r.coin();
  const bool counts = r.coin();
  return {"random",
          {sharded(r.tensor(sizes), r.integer(0, spatial + 1))},
          [=](const std::vector<at::Tensor>& t) {
            if (spatial == 1) {
              return averages ? at::avg_pool1d(t[0], kernel, stride, padding, ceil, counts)
                              : at::max_pool1d(t[0], kernel, stride, padding, 1, ceil);
            }
            if (spatial == 2) {
              return averages ? at::avg_pool2d(t[0], kernel, stride, padding, ceil, counts)
                              : at::max_pool2d(t[0], kernel, stride, padding, 1, ceil);
            }
            return averages ? at::avg_pool3d(t[0], kernel, stride, padding, ceil, counts)
                            : at::max_pool3d(t[0], kernel, stride, padding, 1, ceil);
          }};
}
SHARD_RANDOM_SAMPLES(RandomPooling, random_sample);

TEST(MaxPool, IndicesComeWithDifferentiableValues) {
  expect_sharded_equals_plain(
      [](const Tensors& t) { return std::get<0>(torch::max_pool2d_with_indices(t[0], 3, 2, 1)); },
      {sharded(field({1, 2, 9, 6}), 2)});
}

TEST(MaxPool, IntegersArePaddedWithTheLowestValue) {
  Check forward_only;
  forward_only.gradients = false;
  expect_sharded_equals_plain([](const Tensors& t) { return torch::max_pool2d(t[0], 3, 2, 1); },
                              {sharded(torch::randint(-9, -1, {1, 2, 9, 6}), 2)}, forward_only);
}

TEST(Pooling, AlignedWindowsSendNothing) {
  run_ranks(2, [](World& world) {
    const auto mesh = world.mesh();
    const Tensor x = scatter_tensor(field({1, 2, 12, 6}), 0, mesh, {Shard(2)}, {8, 4});
    const CommCounter counter;
    torch::max_pool2d(x, 2);
    torch::avg_pool2d(x, 2);
    EXPECT_EQ(counter.calls(), 0) << counter.table();
    torch::max_pool2d(x, 3, 2, 1);
    EXPECT_EQ(counter.calls("exchange"), 1);
    EXPECT_EQ(counter.calls(), 1);
  });
}

TEST(Pooling, TooMuchPaddingIsRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "at most half", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(field({1, 2, 8, 6}), 0, mesh, {Shard(2)});
    return [x] { torch::max_pool2d(x, 2, 2, 2); };
  });
}

TEST(Pooling, WindowLargerThanTheInputIsRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "Use a smaller kernel", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(field({1, 2, 3, 8}), 0, mesh, {Shard(2)}, {2, 1});
    return [x] { torch::avg_pool2d(x, 5); };
  });
}

TEST(Pooling, AveragesOfIntegersWithOtherDivisorsAreRefusedAlikeOnEveryRank) {
  expect_same_error<MissingShardPatch>(3, "floating-point values", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(torch::ones({1, 2, 9, 6}, torch::kLong), 0, mesh, {Shard(2)});
    return [x] { torch::avg_pool2d(x, 3, 2, 1, false, false); };
  });
}

TEST(Pooling, OneRankIsBitEqualToPlain) {
  run_ranks(1, [](World& world) {
    const Tensor plain = field({1, 2, 9, 6});
    const Tensor x = scatter_tensor(plain, 0, world.mesh(), {Shard(2)});
    EXPECT_TRUE(torch::equal(ShardTensor(torch::avg_pool2d(x, 3, 2, 1, true, false)).local(),
                             torch::avg_pool2d(plain, 3, 2, 1, true, false)));
    EXPECT_TRUE(torch::equal(ShardTensor(torch::max_pool2d(x, 3, 2, 1)).local(),
                             torch::max_pool2d(plain, 3, 2, 1)));
  });
}

}  // namespace
}  // namespace shard::testing
