// SPDX-License-Identifier: Apache-2.0
// Convolution over sharded inputs equals plain convolution: every geometry, both ways to a halo,
// what it sends, and what it refuses. PEERS of this library get many of these wrong, hence the many
// small cases.
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <shard/window_patch.h>
#include <support/rank_errors.h>
#include <support/samples.h>
#include <torch/torch.h>

#include <cmath>

namespace shard::testing {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Options = F::Conv2dFuncOptions;

Tensor field(const std::vector<int64_t>& sizes) { return torch::randn(sizes); }
Tensor filter(const std::vector<int64_t>& sizes) { return torch::randn(sizes) * 0.3; }

/// conv2d of a (1, 2, rows, 5) field with 3 output channels, sharded by rows.
Sample conv_case(std::string name, int64_t kernel, const Options& options, int64_t rows = 9,
                 int64_t shard_dim = 2) {
  return {
      std::move(name),
      {sharded(field({1, 2, rows, 5}), shard_dim), weight(filter({3, 2, kernel, kernel})),
       weight(field({3}))},
      [options](const Tensors& t) { return F::conv2d(t[0], t[1], Options(options).bias(t[2])); }};
}

Options geometry(int64_t stride, int64_t padding, int64_t dilation = 1) {
  return Options().stride(stride).padding(padding).dilation(dilation);
}

std::vector<Sample> geometry_cases() {
  torch::manual_seed(2);
  return {
      conv_case("kernel_3_same", 3, geometry(1, 1)),
      conv_case("kernel_3_without_padding", 3, geometry(1, 0)),
      conv_case("kernel_3_stride_2_odd_shards", 3, geometry(2, 1), 10),
      conv_case("kernel_3_stride_3_without_padding", 3, geometry(3, 0), 12),
      conv_case("kernel_3_stride_2_without_padding", 3, geometry(2, 0), 16),
      conv_case("kernel_5_same", 5, geometry(1, 2)),
      conv_case("kernel_5_padding_smaller_than_half", 5, geometry(1, 1)),
      conv_case("kernel_3_padding_larger_than_half", 3, geometry(1, 2)),
      conv_case("kernel_3_padding_3", 3, geometry(1, 3)),
      conv_case("kernel_3_dilation_2", 3, geometry(1, 2, 2)),
      conv_case("kernel_3_dilation_2_stride_2", 3, geometry(2, 1, 2)),
      conv_case("kernel_2_even", 2, geometry(1, 0)),
      conv_case("kernel_4_even_stride_2", 4, geometry(2, 1), 12),
      conv_case("kernel_2_stride_2_patches", 2, geometry(2, 0), 12),
      conv_case("kernel_2_stride_2_odd_shards", 2, geometry(2, 0), 10),
      conv_case("kernel_4_stride_4_patches", 4, geometry(4, 0), 16),
      conv_case("kernel_1", 1, geometry(1, 0)),
      conv_case("kernel_1_stride_2_odd_shards", 1, geometry(2, 0), 10),
      conv_case("kernel_1_stride_3_skips_rows", 1, geometry(3, 0), 10),
      conv_case("kernel_1_padding_1_grows", 1, geometry(1, 1)),
      conv_case("stride_larger_than_the_kernel_with_padding", 2, geometry(3, 1), 11),
      conv_case("halo_wider_than_the_shards", 7, geometry(1, 3), 8),
      conv_case("one_row_a_rank", 3, geometry(1, 1), 4),
      conv_case("more_ranks_than_rows", 3, geometry(1, 1), 3),
      conv_case("sharded_by_columns", 3, geometry(1, 1), 6, 3),
      conv_case("patches_sharded_by_columns", 4, geometry(4, 0), 8, 3),
      conv_case("sharded_by_channels", 3, geometry(1, 1), 6, 1),
      conv_case("string_padding_valid", 3, Options().padding(torch::kValid)),
      conv_case("string_padding_same_even_kernel", 4, Options().padding(torch::kSame)),
      conv_case("string_padding_same_odd_kernel", 3, Options().padding(torch::kSame)),
  };
}

std::vector<Sample> geometries() {
  return with_whole(geometry_cases(),
                    "cut channels move to another dim: with the halo nearly whole",
                    {"sharded_by_channels"});
}
SHARD_SAMPLES(Conv2d, geometries());

std::vector<Sample> layout_cases() {
  torch::manual_seed(3);
  const auto conv2d = [](const Options& options) {
    return [options](const Tensors& t) { return F::conv2d(t[0], t[1], options); };
  };
  return {
      {"depthwise",
       {sharded(field({1, 4, 8, 4}), 2), weight(filter({4, 1, 3, 3}))},
       conv2d(geometry(1, 1).groups(4))},
      {"grouped",
       {sharded(field({2, 4, 8, 4}), 2), weight(filter({6, 2, 3, 3}))},
       conv2d(geometry(1, 1).groups(2))},
      {"rectangular_kernel",
       {sharded(field({1, 2, 9, 6}), 2), weight(filter({3, 2, 5, 3}))},
       conv2d(Options().padding({2, 1}).stride({1, 2}))},
      {"batch_shard",
       {sharded(field({5, 2, 6, 4}), 0), weight(filter({3, 2, 3, 3}))},
       conv2d(geometry(1, 1))},
      {"unbatched",
       {sharded(field({2, 9, 5}), 1), weight(filter({3, 2, 3, 3}))},
       conv2d(geometry(1, 1))},
      {"channels_last",
       {sharded(field({2, 4, 9, 5}).contiguous(torch::MemoryFormat::ChannelsLast), 2),
        weight(filter({4, 4, 3, 3}).contiguous(torch::MemoryFormat::ChannelsLast))},
       conv2d(geometry(1, 1))},
      {"double_precision",
       {sharded(field({1, 2, 9, 5}).to(torch::kDouble), 2),
        weight(filter({3, 2, 3, 3}).to(torch::kDouble))},
       conv2d(geometry(2, 1))},
      {"sharded_weight_is_used_whole",
       {constant(field({1, 2, 6, 4})), sharded(filter({3, 2, 3, 3}), 0)},
       conv2d(geometry(1, 1))},
      {"cut_batch_and_weight_next_to_a_plain_bias",
       {sharded(field({4, 4, 5, 4}), 0), sharded(filter({3, 4, 3, 3}), 0), weight(field({3}))},
       [](const Tensors& t) { return torch::conv2d(t[0], t[1], t[2], 1, 1); }},
      {"one_dim",
       {sharded(field({2, 3, 11}), 2), weight(filter({4, 3, 5}))},
       [](const Tensors& t) { return torch::conv1d(t[0], t[1], {}, 2, 1); }},
      {"causal_one_dim_kernel_longer_than_shards",
       {sharded(field({1, 2, 8}), 2), weight(filter({2, 2, 4}))},
       [](const Tensors& t) {
         return torch::conv1d(F::pad(t[0], F::PadFuncOptions({3, 0})), t[1]);
       }},
      {"three_dims",
       {sharded(field({1, 2, 8, 4, 3}), 2), weight(filter({2, 2, 3, 3, 3})), weight(field({2}))},
       [](const Tensors& t) { return torch::conv3d(t[0], t[1], t[2], 1, 1); }},
      {"three_dims_sharded_in_the_middle",
       {sharded(field({1, 2, 4, 8, 3}), 3), weight(filter({2, 2, 3, 2, 1}))},
       [](const Tensors& t) {
         return torch::conv3d(t[0], t[1], {}, 2, {1, 0, 0});
       }},
      {"strided_output_into_a_second_convolution",
       {sharded(field({1, 2, 11, 5}), 2), weight(filter({3, 2, 3, 3})),
        weight(filter({2, 3, 3, 3}))},
       [](const Tensors& t) {
         return torch::conv2d(torch::conv2d(t[0], t[1], {}, 2, 1).tanh(), t[2], {}, 1, 1);
       }},
  };
}

std::vector<Sample> layouts() {
  return with_whole(with_traffic(layout_cases(), {{"sharded_weight_is_used_whole", 2.25}}),
                    "every rank needs the whole filter",
                    {"sharded_weight_is_used_whole", "cut_batch_and_weight_next_to_a_plain_bias"});
}
SHARD_SAMPLES(ConvolutionLayout, layouts());

/// A module with given weights.
template <class Padding>
Function module_with(Padding mode, int64_t padding, int64_t stride = 1) {
  return [=](const Tensors& t) {
    torch::nn::Conv2d conv(
        torch::nn::Conv2dOptions(2, 3, 3).padding(padding).stride(stride).padding_mode(mode).bias(
            false));
    conv->weight = t[1];
    return conv->forward(t[0]);
  };
}

std::vector<Sample> padding_modes() {
  torch::manual_seed(4);
  const std::vector<Input> inputs{sharded(field({1, 2, 9, 5}), 2), weight(filter({3, 2, 3, 3}))};
  const std::vector<Input> columns{sharded(field({1, 2, 5, 9}), 3), weight(filter({3, 2, 3, 3}))};
  return {
      {"circular", inputs, module_with(torch::kCircular, 1)},
      {"circular_sharded_by_columns", columns, module_with(torch::kCircular, 1)},
      {"circular_padding_2_stride_2", inputs, module_with(torch::kCircular, 2, 2)},
      {"reflect", inputs, module_with(torch::kReflect, 1)},
      {"replicate", inputs, module_with(torch::kReplicate, 1)},
      {"zeros", inputs, module_with(torch::kZeros, 1)},
  };
}
SHARD_SAMPLES(PaddingMode, padding_modes());

/// Any geometry in one to three spatial dims.
Sample random_sample(Random& r) {
  const int64_t spatial = r.integer(1, 3);
  const int64_t groups = r.integer(1, 3);
  const auto kernel = r.sizes(spatial, 1, 4);
  const auto stride = r.sizes(spatial, 1, 3);
  const auto dilation = r.sizes(spatial, 1, 2);
  const auto padding = r.sizes(spatial, 0, 3);
  std::vector<int64_t> x_sizes{r.integer(1, 3), 2 * groups};
  std::vector<int64_t> w_sizes{groups * r.integer(1, 2), 2};
  for (size_t i = 0; i < kernel.size(); ++i) {
    const int64_t reach = dilation[i] * (kernel[i] - 1) + 1;
    x_sizes.push_back(std::max<int64_t>(reach - 2 * padding[i], 1) + r.integer(0, 7));
    w_sizes.push_back(kernel[i]);
  }
  const int64_t dim = r.one_of<int64_t>({0, 2, spatial + 1, spatial + 1});
  std::vector<Input> inputs{sharded(r.tensor(x_sizes), dim), weight(r.tensor(w_sizes))};
  if (r.coin()) inputs.push_back(weight(r.tensor({w_sizes[0]})));
  return {"random", inputs, [=](const std::vector<at::Tensor>& t) {
            return at::convolution(t[0], t[1], t.size() > 2 ? t[2] : at::Tensor(), stride, padding,
                                   dilation, false, {0}, groups);
          }};
}
SHARD_RANDOM_SAMPLES(RandomConvolution, random_sample);

/// The same geometries with no copy of the local tensor.
class ByLinearity : public SampleTest {
 protected:
  void SetUp() override { set_concatenation_limit(0); }
  void TearDown() override { set_concatenation_limit(before_); }
  int64_t before_ = concatenation_limit();
};
TEST_P(ByLinearity, EqualsThePlainOp) { expect_conformance(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Geometry, ByLinearity,
                         ::testing::ValuesIn(covered(__FILE__, geometries())), name_of_sample);
INSTANTIATE_TEST_SUITE_P(Layout, ByLinearity, ::testing::ValuesIn(covered(__FILE__, layouts())),
                         name_of_sample);

/// Forward only, the whole product of small geometries, in one pass over ranks.
TEST(Convolution, GridOfKernelsStridesPaddingsAndDilations) {
  torch::manual_seed(5);
  const Tensor x = torch::randn({1, 1, 13}, torch::kDouble);
  for (const int64_t limit : {int64_t{0}, int64_t{1} << 20}) {
    const auto before = concatenation_limit();
    set_concatenation_limit(limit);
    run_ranks(3, [&](World& world) {
      const auto mesh = world.mesh();
      for (const auto& [name, partition] : splits(13, 3)) {
        const Tensor sharded_x = scatter_tensor(x, 0, mesh, {Shard(2)}, partition);
        for (int64_t code = 0; code < 5 * 3 * 4 * 2; ++code) {
          const int64_t kernel = code % 5 + 1, stride = code / 5 % 3 + 1, padding = code / 15 % 4;
          const int64_t dilation = code / 60 + 1;
          const Tensor w = torch::arange(kernel, torch::kDouble).add(1).view({1, 1, -1});
          const Tensor y = torch::conv1d(sharded_x, w, {}, stride, padding, dilation);
          const Tensor want = torch::conv1d(x, w, {}, stride, padding, dilation);
          EXPECT_LE(relative_error(ShardTensor(y).full(), want), 1e-13)
              << name << ": kernel " << kernel << ", stride " << stride << ", padding " << padding
              << ", dilation " << dilation << ", limit " << limit;
        }
      }
    });
    set_concatenation_limit(before);
  }
}

/// Output and gradients of conv1d(x, w) cut into `partition`, in double precision, against plain.
void expect_equal_on(const Partition& partition, int64_t kernel, int64_t stride, int64_t padding,
                     int64_t dilation) {
  const int64_t n = offset_of(partition, static_cast<int64_t>(partition.size()));
  const auto options = torch::TensorOptions(torch::kDouble);
  const Tensor x = torch::randn({2, 2, n}, options).requires_grad_();
  const Tensor w = torch::randn({3, 2, kernel}, options).requires_grad_();
  const Tensor want = torch::conv1d(x, w, {}, stride, padding, dilation);
  const auto gradients = torch::autograd::grad({want.square().sum()}, {x, w});
  run_ranks(static_cast<int>(partition.size()), [&](World& world) {
    Tensor sharded_x = scatter_tensor(x.detach(), 0, world.mesh(), {Shard(2)}, partition);
    sharded_x.set_requires_grad(true);
    const Tensor own_w = w.detach().clone().requires_grad_();
    const Tensor y = torch::conv1d(sharded_x, own_w, {}, stride, padding, dilation);
    const auto got = torch::autograd::grad({y.square().sum()}, {sharded_x, own_w});
    const auto where = [&] {
      return c10::str("kernel ", kernel, ", stride ", stride, ", padding ", padding, ", dilation ",
                      dilation, ", shards ", c10::IntArrayRef(partition));
    };
    EXPECT_LE(relative_error(ShardTensor(y).full(), want), 1e-13) << where();
    EXPECT_LE(relative_error(ShardTensor(got[0]).full(), gradients[0]), 1e-13) << where();
    EXPECT_LE(relative_error(got[1], gradients[1]), 1e-13) << where();
  });
}

TEST(Convolution, EvenKernelsOnUnevenShardsHaveTheRightGradients) {
  for (int64_t code = 0; code < 16; ++code) {
    expect_equal_on({5, 3, 4}, code & 1 ? 4 : 2, code & 2 ? 2 : 1, code & 4 ? 1 : 0,
                    code & 8 ? 2 : 1);
  }
}

TEST(Convolution, ShardsShorterThanTheKernelHaveTheRightGradients) {
  for (const Partition& partition : {Partition{1, 2, 5}, {2, 1, 1}, {1, 1, 2, 1}}) {
    expect_equal_on(partition, 4, 1, 0, 1);
    expect_equal_on(partition, 4, 1, 3, 1);
  }
}

TEST(Convolution, MoreRanksThanRowsAndAKernelLongerThanTheShards) {
  expect_equal_on({1, 1, 1, 1, 1, 1, 0}, 5, 1, 2, 1);
  expect_equal_on({0, 2, 0, 3, 0, 1, 0}, 3, 2, 1, 1);
}

TEST(Convolution, BothWaysToAHaloAgree) {
  const auto before = concatenation_limit();
  const Tensor x = torch::randn({1, 3, 12, 6}, torch::kDouble);
  const Tensor w = torch::randn({4, 3, 3, 3}, torch::kDouble);
  std::vector<Tensor> results;
  for (const int64_t limit : {int64_t{0}, before}) {
    set_concatenation_limit(limit);
    run_ranks(2, [&](World& world) {
      const Tensor y = torch::conv2d(scatter_tensor(x, 0, world.mesh(), {Shard(2)}), w, {}, 1, 1);
      const Tensor full = ShardTensor(y).full();
      if (world.is_root()) results.push_back(full);
    });
  }
  set_concatenation_limit(before);
  EXPECT_LE(relative_error(results[0], results[1]), 1e-14);
}

TEST(Convolution, OneExchangeForwardAndNoGather) {
  run_ranks(3, [](World& world) {
    const auto mesh = world.mesh();
    Tensor x = scatter_tensor(torch::randn({1, 2, 12, 4}), 0, mesh, {Shard(2)});
    x.set_requires_grad(true);
    const Tensor w = torch::randn({2, 2, 3, 3}).requires_grad_();
    const Tensor b = torch::randn({2}).requires_grad_();
    const CommCounter counter;
    const Tensor y = torch::conv2d(x, w, b, 1, 1);
    EXPECT_EQ(counter.calls("exchange"), 1);
    EXPECT_EQ(counter.calls(), 1);
    const Tensor cotangent = torch::ones_like(y);
    const CommCounter backward;
    torch::autograd::grad({y}, {x, w, b}, {cotangent});
    EXPECT_EQ(backward.calls("exchange"), 1) << backward.table();
    EXPECT_EQ(backward.calls("all_reduce"), 1) << "weight and bias in one message\n"
                                               << backward.table();
  });
}

TEST(Convolution, BatchShardAndAlignedPatchesSendNothing) {
  run_ranks(2, [](World& world) {
    const auto mesh = world.mesh();
    const Tensor batch = scatter_tensor(torch::randn({4, 3, 10, 10}), 0, mesh, {Shard(0)});
    const Tensor rows = scatter_tensor(torch::randn({1, 3, 16, 8}), 0, mesh, {Shard(2)});
    const Tensor w = torch::randn({2, 3, 7, 7});
    const CommCounter counter;
    torch::conv2d(batch, w, {}, 2, 3);
    torch::conv2d(rows, w.slice(2, 0, 4).slice(3, 0, 4), {}, 4);
    torch::conv2d(rows, w.slice(2, 0, 1).slice(3, 0, 1));
    EXPECT_EQ(counter.calls(), 0) << counter.table();
  });
}

TEST(Convolution, SameConvolutionKeepsThePartition) {
  run_ranks(3, [](World& world) {
    const Partition partition{5, 0, 4};
    const Tensor x =
        scatter_tensor(torch::randn({1, 2, 9, 5}), 0, world.mesh(), {Shard(2)}, partition);
    const Tensor w = torch::randn({2, 2, 3, 3});
    EXPECT_EQ(ShardTensor(torch::conv2d(x, w, {}, 1, 1)).spec().partition(), partition);
    torch::nn::Conv2d circular(
        torch::nn::Conv2dOptions(2, 2, 3).padding(1).padding_mode(torch::kCircular));
    EXPECT_EQ(ShardTensor(circular->forward(x)).spec().partition(), partition);
  });
}

TEST(Convolution, GradientOfTheInputLiesLikeTheInput) {
  run_ranks(2, [](World& world) {
    Tensor x = scatter_tensor(torch::randn({1, 3, 8, 16}), 0, world.mesh(), {Shard(3)}, {12, 4});
    x.set_requires_grad(true);
    const Tensor w = torch::randn({8, 3, 4, 4}).requires_grad_();
    torch::conv2d(x, w, {}, 4).square().sum().backward();
    const ShardTensor gradient(x.grad());
    EXPECT_EQ(gradient.spec().placement(), Shard(3));
    EXPECT_EQ(gradient.spec().partition(), (Partition{12, 4}));
  });
}

TEST(Convolution, OneRankIsBitEqualToPlainAndSendsNothing) {
  run_ranks(1, [](World& world) {
    Tensor plain_x = torch::randn({1, 2, 9, 5}).requires_grad_();
    Tensor plain_w = torch::randn({3, 2, 3, 3}).requires_grad_();
    Tensor x = scatter_tensor(plain_x.detach(), 0, world.mesh(), {Shard(2)});
    x.set_requires_grad(true);
    const Tensor w = plain_w.detach().clone().requires_grad_();
    const CommCounter counter;
    torch::conv2d(x, w, {}, 1, 1).square().sum().backward();
    torch::conv2d(plain_x, plain_w, {}, 1, 1).square().sum().backward();
    EXPECT_TRUE(torch::equal(ShardTensor(x.grad()).local(), plain_x.grad()));
    EXPECT_TRUE(torch::equal(w.grad(), plain_w.grad()));
    EXPECT_EQ(counter.calls(), 0);
  });
}

TEST(Convolution, DomainOfOneRankInALargerMesh) {
  run_ranks(2, [](World& world) {
    const auto domain = world.mesh({{"ddp", 2}, {"domain", 1}})["domain"];
    manual_seed(12);
    const Tensor whole = torch::randn({1, 2, 6, 5});
    const Tensor filter = torch::randn({3, 2, 3, 3});
    const auto step = [&](Tensor x) {
      Tensor w = filter.clone().requires_grad_();
      x.requires_grad_();
      const Tensor y = torch::max_pool2d(torch::conv2d(x, w, {}, 1, 1), 2);
      y.square().sum().backward();
      return Tensors{y.detach(), x.grad(), w.grad()};
    };
    const auto want = step(whole.clone());
    const CommCounter counter;
    const auto got = step(scatter_tensor(whole, 0, domain, {Shard(2)}));
    for (size_t i = 0; i < want.size(); ++i) {
      const Tensor mine = is_shard_tensor(got[i]) ? ShardTensor(got[i]).local() : got[i];
      EXPECT_TRUE(torch::equal(mine, want[i])) << i;
    }
    EXPECT_EQ(counter.calls(), 0);
  });
}

TEST(Convolution, LocalResultsAreContiguous) {
  run_ranks(3, [](World& world) {
    for (const int64_t limit : {int64_t{0}, int64_t{1} << 20}) {
      world.comm().barrier();
      if (world.is_root()) set_concatenation_limit(limit);
      world.comm().barrier();
      const Tensor x = scatter_tensor(torch::randn({2, 3, 13, 6}), 0, world.mesh(), {Shard(2)});
      const Tensor y = torch::conv2d(x, torch::randn({4, 3, 3, 3}), {}, 2, 1);
      EXPECT_TRUE(ShardTensor(y).local().is_contiguous());
    }
  });
}

TEST(Convolution, KernelLargerThanTheInputIsRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(3, "Use a smaller kernel", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(torch::randn({1, 2, 6, 12}), 0, mesh, {Shard(2)}, {3, 2, 1});
    return [x] { torch::conv2d(x, torch::randn({2, 2, 7, 7})); };
  });
}

TEST(Convolution, InvalidStrideIsRefusedAlikeOnEveryRank) {
  expect_same_error<c10::Error>(2, "stride", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(torch::randn({1, 2, 6, 6}), 0, mesh, {Shard(2)});
    return [x] { torch::conv2d(x, torch::randn({2, 2, 3, 3}), {}, 0); };
  });
}

}  // namespace
}  // namespace shard::testing
