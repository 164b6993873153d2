// SPDX-License-Identifier: Apache-2.0
// Transposed convolution over sharded inputs equals plain transposed convolution: every geometry,
// gaps between rows, output padding, what it sends, where its rows live and what it refuses.
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
using Options = F::ConvTranspose2dFuncOptions;

Tensor field(const std::vector<int64_t>& sizes) { return torch::randn(sizes); }
Tensor filter(const std::vector<int64_t>& sizes) { return torch::randn(sizes) * 0.3; }

/// conv_transpose2d of a (2, 2, rows, 5) field with 3 output channels, sharded by rows.
Sample spread_case(std::string name, int64_t kernel, const Options& options, int64_t rows = 7,
                   int64_t shard_dim = 2) {
  return {std::move(name),
          {sharded(field({2, 2, rows, 5}), shard_dim), weight(filter({2, 3, kernel, kernel})),
           weight(field({3}))},
          [options](const Tensors& t) {
            return F::conv_transpose2d(t[0], t[1], Options(options).bias(t[2]));
          }};
}

Options geometry(int64_t stride, int64_t padding, int64_t output_padding = 0,
                 int64_t dilation = 1) {
  return Options()
      .stride(stride)
      .padding(padding)
      .output_padding(output_padding)
      .dilation(dilation);
}

std::vector<Sample> geometries() {
  torch::manual_seed(21);
  return {
      spread_case("kernel_2_stride_2_unet", 2, geometry(2, 0)),
      spread_case("kernel_3_stride_2_padding_1_output_padding_1", 3, geometry(2, 1, 1)),
      spread_case("kernel_4_stride_2_padding_1_gan", 4, geometry(2, 1)),
      spread_case("kernel_3_stride_2_padding_1", 3, geometry(2, 1)),
      spread_case("kernel_3_same", 3, geometry(1, 1)),
      spread_case("kernel_3_without_padding", 3, geometry(1, 0)),
      spread_case("kernel_4_even_stride_1", 4, geometry(1, 1)),
      spread_case("kernel_1_stride_2_leaves_gaps", 1, geometry(2, 0)),
      spread_case("kernel_2_stride_5_leaves_gaps", 2, geometry(5, 0, 3)),
      spread_case("kernel_1_stride_3_padding_1", 1, geometry(3, 1, 2)),
      spread_case("kernel_3_stride_3_without_padding", 3, geometry(3, 0)),
      spread_case("kernel_5_stride_2_padding_2", 5, geometry(2, 2, 1)),
      spread_case("dilation_2", 3, geometry(1, 2, 0, 2)),
      spread_case("dilation_3_stride_2_output_padding_2", 2, geometry(2, 1, 2, 3)),
      spread_case("padding_larger_than_the_kernel", 3, geometry(2, 4), 9),
      spread_case("halo_wider_than_the_shards", 7, geometry(1, 3), 6),
      spread_case("one_row_a_rank", 4, geometry(2, 1), 4),
      spread_case("more_ranks_than_rows", 3, geometry(2, 1, 1), 3),
      spread_case("one_row", 4, geometry(2, 1), 1),
      spread_case("sharded_by_columns", 4, geometry(2, 1), 3, 3),
      spread_case("sharded_by_channels", 2, geometry(2, 0), 6, 1),
  };
}
SHARD_SAMPLES(ConvTranspose2d, geometries());

std::vector<Sample> layouts() {
  torch::manual_seed(22);
  const auto spread = [](const Options& options) {
    return [options](const Tensors& t) { return F::conv_transpose2d(t[0], t[1], options); };
  };
  return {
      {"depthwise",
       {sharded(field({1, 4, 7, 4}), 2), weight(filter({4, 1, 4, 4}))},
       spread(geometry(2, 1).groups(4))},
      {"grouped",
       {sharded(field({2, 4, 7, 4}), 2), weight(filter({4, 3, 3, 3}))},
       spread(geometry(2, 1, 1).groups(2))},
      {"rectangular",
       {sharded(field({1, 2, 7, 6}), 2), weight(filter({2, 3, 5, 2}))},
       spread(Options().padding({2, 0}).stride({3, 1}).output_padding({2, 0}))},
      {"batch_shard",
       {sharded(field({5, 2, 4, 4}), 0), weight(filter({2, 3, 3, 3}))},
       spread(geometry(2, 1))},
      {"unbatched",
       {sharded(field({2, 7, 5}), 1), weight(filter({2, 3, 4, 4}))},
       spread(geometry(2, 1))},
      {"channels_last",
       {sharded(field({2, 4, 7, 5}).contiguous(torch::MemoryFormat::ChannelsLast), 2),
        weight(filter({4, 3, 4, 4}))},
       spread(geometry(2, 1))},
      {"non_contiguous",
       {sharded(field({2, 2, 5, 7}).transpose(2, 3), 2), weight(filter({2, 3, 4, 4}))},
       spread(geometry(2, 1))},
      {"sharded_weight_is_used_whole",
       {constant(field({1, 2, 6, 4})), sharded(filter({2, 3, 3, 3}), 0)},
       spread(geometry(2, 1))},
      {"cut_batch_and_weight_next_to_a_plain_bias",
       {sharded(field({4, 4, 3, 4}), 0), sharded(filter({4, 3, 3, 3}), 0), weight(field({3}))},
       [](const Tensors& t) { return torch::conv_transpose2d(t[0], t[1], t[2], 2, 1); }},
      {"one_dim",
       {sharded(field({2, 3, 7}), 2), weight(filter({3, 4, 5})), weight(field({4}))},
       [](const Tensors& t) { return torch::conv_transpose1d(t[0], t[1], t[2], 3, 1, 1); }},
      {"three_dims",
       {sharded(field({1, 2, 5, 4, 3}), 2), weight(filter({2, 2, 4, 3, 2}))},
       [](const Tensors& t) {
         return torch::conv_transpose3d(t[0], t[1], {}, 2, {1, 1, 0});
       }},
      {"three_dims_sharded_in_the_middle",
       {sharded(field({1, 2, 3, 7, 2}), 3), weight(filter({2, 2, 3, 2, 1}))},
       [](const Tensors& t) { return torch::conv_transpose3d(t[0], t[1], {}, 2); }},
      {"as_aten_convolution",
       {sharded(field({1, 2, 7, 5}), 2), weight(filter({2, 3, 4, 4}))},
       [](const Tensors& t) {
         return at::convolution(t[0], t[1], {}, {2, 2}, {1, 1}, {1, 1}, true, {0, 0}, 1);
       }},
      {"module_with_a_given_output_size",
       {sharded(field({1, 2, 7, 5}), 2), weight(filter({2, 3, 3, 3}))},
       [](const Tensors& t) {
         torch::nn::ConvTranspose2d up(
             torch::nn::ConvTranspose2dOptions(2, 3, 3).stride(2).padding(1).bias(false));
         up->weight = t[1];
         return up->forward(t[0], std::vector<int64_t>{14, 9});
       }},
      {"down_and_up_again",
       {sharded(field({1, 2, 11, 5}), 2), weight(filter({3, 2, 3, 3})),
        weight(filter({3, 2, 3, 3}))},
       [](const Tensors& t) {
         return torch::conv_transpose2d(torch::conv2d(t[0], t[1], {}, 2, 1).tanh(), t[2], {}, 2,
                                        1) +
                t[0];
       }},
  };
}
SHARD_SAMPLES(TransposedLayout, with_whole(layouts(), "a weight is used whole",
                                           {"sharded_weight_is_used_whole",
                                            "cut_batch_and_weight_next_to_a_plain_bias"}));

/// Any geometry in one to three spatial dims.
Sample random_sample(Random& r) {
  const int64_t spatial = r.integer(1, 3);
  const int64_t groups = r.integer(1, 2);
  const auto kernel = r.sizes(spatial, 1, 4);
  const auto stride = r.sizes(spatial, 1, 3);
  const auto dilation = r.sizes(spatial, 1, 2);
  auto padding = r.sizes(spatial, 0, 3);
  auto output_padding = r.sizes(spatial, 0, 2);
  std::vector<int64_t> x_sizes{r.integer(1, 2), 2 * groups};
  std::vector<int64_t> w_sizes{2 * groups, r.integer(1, 2)};
  for (size_t i = 0; i < kernel.size(); ++i) {
    const int64_t reach = dilation[i] * (kernel[i] - 1) + 1;
    output_padding[i] = std::min(output_padding[i], std::max(stride[i], dilation[i]) - 1);
    x_sizes.push_back(r.integer(1, 7));
    const int64_t size = (x_sizes.back() - 1) * stride[i] + reach + output_padding[i];
    padding[i] = std::min(padding[i], (size - 1) / 2);
    w_sizes.push_back(kernel[i]);
  }
  const int64_t dim = r.one_of<int64_t>({0, 2, spatial + 1, spatial + 1});
  std::vector<Input> inputs{sharded(r.tensor(x_sizes), dim), weight(r.tensor(w_sizes))};
  if (r.coin()) inputs.push_back(weight(r.tensor({w_sizes[1] * groups})));
  return {"random", inputs, [=](const Tensors& t) {
            return at::convolution(t[0], t[1], t.size() > 2 ? t[2] : Tensor(), stride, padding,
                                   dilation, true, output_padding, groups);
          }};
}
SHARD_RANDOM_SAMPLES(RandomTransposedConvolution, random_sample);

/// Forward only, the whole product of small geometries, in one pass over ranks.
TEST(TransposedConvolution, GridOfKernelsStridesPaddingsAndDilations) {
  torch::manual_seed(23);
  const Tensor x = torch::randn({1, 1, 9}, torch::kDouble);
  run_ranks(3, [&](World& world) {
    for (const auto& [name, partition] : splits(9, 3)) {
      const Tensor sharded_x = scatter_tensor(x, 0, world.mesh(), {Shard(2)}, partition);
      for (int64_t code = 0; code < 5 * 4 * 4 * 2 * 2; ++code) {
        const int64_t kernel = code % 5 + 1, stride = code / 5 % 4 + 1, padding = code / 20 % 4;
        const int64_t dilation = code / 80 % 2 + 1;
        const int64_t output_padding = code / 160 * (std::max(stride, dilation) - 1);
        const Tensor w = torch::arange(kernel, torch::kDouble).add(1).view({1, 1, -1});
        const auto spread = [&](const Tensor& t) {
          return torch::conv_transpose1d(t, w, {}, stride, padding, output_padding, 1, dilation);
        };
        EXPECT_LE(relative_error(ShardTensor(spread(sharded_x)).full(), spread(x)), 1e-13)
            << name << ": kernel " << kernel << ", stride " << stride << ", padding " << padding
            << ", output padding " << output_padding << ", dilation " << dilation;
      }
    }
  });
}

TEST(TransposedConvolution, KernelAsLongAsTheStrideSendsNothing) {
  run_ranks(3, [](World& world) {
    const Tensor x =
        scatter_tensor(field({1, 2, 9, 5}), 0, world.mesh(), {Shard(2)}, Partition{4, 2, 3});
    const CommCounter counter;
    const Tensor doubled = torch::conv_transpose2d(x, filter({2, 3, 2, 2}), {}, 2);
    const Tensor fourfold = torch::conv_transpose2d(x, filter({2, 3, 4, 4}), {}, 4);
    EXPECT_EQ(counter.calls(), 0) << counter.table();
    EXPECT_EQ(ShardTensor(doubled).spec().partition(), (Partition{8, 4, 6}));
    EXPECT_EQ(ShardTensor(fourfold).spec().partition(), (Partition{16, 8, 12}));
  });
}

TEST(TransposedConvolution, DoublingGivesEveryRankTwiceItsRows) {
  run_ranks(3, [](World& world) {
    const Tensor x =
        scatter_tensor(field({1, 2, 9, 5}), 0, world.mesh(), {Shard(2)}, Partition{4, 2, 3});
    const auto partition = [](const Tensor& y) { return ShardTensor(y).spec().partition(); };
    const Partition doubled{8, 4, 6};
    EXPECT_EQ(partition(torch::conv_transpose2d(x, filter({2, 3, 4, 4}), {}, 2, 1)), doubled);
    EXPECT_EQ(partition(torch::conv_transpose2d(x, filter({2, 3, 3, 3}), {}, 2, 1, 1)), doubled);
    EXPECT_EQ(partition(torch::conv_transpose2d(x, filter({2, 3, 3, 3}), {}, 1, 1)),
              (Partition{4, 2, 3}));
  });
}

TEST(TransposedConvolution, OneExchangeForwardAndNoGather) {
  run_ranks(3, [](World& world) {
    Tensor x = scatter_tensor(field({1, 2, 12, 4}), 0, world.mesh(), {Shard(2)});
    x.set_requires_grad(true);
    const Tensor w = filter({2, 2, 4, 4}).requires_grad_();
    const Tensor b = field({2}).requires_grad_();
    const CommCounter counter;
    const Tensor y = torch::conv_transpose2d(x, w, b, 2, 1);
    EXPECT_EQ(counter.calls("exchange"), 1);
    EXPECT_EQ(counter.calls(), 1) << counter.table();
    EXPECT_TRUE(ShardTensor(y).local().is_contiguous());
    const Tensor cotangent = torch::ones_like(y);
    const CommCounter backward;
    torch::autograd::grad({y}, {x, w, b}, {cotangent});
    EXPECT_EQ(backward.calls("exchange"), 1) << backward.table();
    EXPECT_EQ(backward.calls("all_reduce"), 1) << backward.table();
  });
}

TEST(TransposedConvolution, OneRankIsBitEqualToPlainAndSendsNothing) {
  run_ranks(1, [](World& world) {
    const Tensor plain = field({1, 2, 7, 5});
    const Tensor w = filter({2, 3, 3, 3});
    const Tensor x = scatter_tensor(plain, 0, world.mesh(), {Shard(2)});
    const CommCounter counter;
    const Tensor y = torch::conv_transpose2d(x, w, {}, 2, 1, 1);
    EXPECT_TRUE(
        torch::equal(ShardTensor(y).local(), torch::conv_transpose2d(plain, w, {}, 2, 1, 1)));
    EXPECT_EQ(counter.calls(), 0);
  });
}

TEST(TransposedConvolution, TooMuchOutputPaddingIsRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(3, "output_padding 2", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(field({1, 2, 6, 6}), 0, mesh, {Shard(2)}, {3, 2, 1});
    return [x] { torch::conv_transpose2d(x, filter({2, 2, 2, 2}), {}, 2, 0, 2); };
  });
}

TEST(TransposedConvolution, NoOutputRowsAreRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "Use less padding", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(field({1, 2, 2, 6}), 0, mesh, {Shard(2)});
    return [x] { torch::conv_transpose2d(x, filter({2, 2, 2, 2}), {}, 1, 2); };
  });
}

}  // namespace
}  // namespace shard::testing
