// SPDX-License-Identifier: Apache-2.0
// Unfold and fold over sharded inputs equal the plain ops.
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
using UnfoldOptions = F::UnfoldFuncOptions;
using FoldOptions = F::FoldFuncOptions;

/// The ops are linear: their double backward shows behind something that is not.
Tensor bent(const Tensor& y) { return y * (y + 1); }

Sample unfold_case(std::string name, UnfoldOptions options, Tensor x, int64_t dim = 2) {
  return {std::move(name), {sharded(std::move(x), dim)}, [options](const Tensors& t) {
            return bent(F::unfold(t[0], options));
          }};
}
Sample fold_case(std::string name, FoldOptions options, Tensor x, int64_t dim = 2) {
  return {std::move(name), {sharded(std::move(x), dim)}, [options](const Tensors& t) {
            return bent(F::fold(t[0], options));
          }};
}

std::vector<Sample> unfold_cases() {
  torch::manual_seed(61);
  const auto field = [](std::vector<int64_t> sizes) { return torch::randn(sizes); };
  return {
      unfold_case("kernel_3_padding_1", UnfoldOptions(3).padding(1), field({2, 2, 7, 5})),
      unfold_case("patches", UnfoldOptions(2).stride(2), field({1, 2, 10, 4})),
      unfold_case("kernel_3_stride_2", UnfoldOptions(3).stride(2).padding(1), field({1, 2, 9, 5})),
      unfold_case("dilated", UnfoldOptions(2).dilation(2), field({1, 2, 7, 5})),
      unfold_case("rectangular",
                  UnfoldOptions({4, 3}).stride({1, 2}).padding({2, 0}).dilation({1, 2}),
                  field({1, 2, 7, 6})),
      unfold_case("columns", UnfoldOptions(3).padding(1), field({1, 2, 4, 7}), 3),
      unfold_case("channels", UnfoldOptions(3).padding(1), field({1, 5, 4, 4}), 1),
      unfold_case("batch", UnfoldOptions(3).padding(1), field({5, 1, 4, 4}), 0),
      {"unbatched",
       {sharded(field({2, 7, 4}), 1)},
       [](const Tensors& t) {
         return bent(torch::im2col(t[0], {3, 3}, {1, 1}, {1, 1}, {1, 1}));
       }},
      unfold_case("one_row", UnfoldOptions(3).padding(1), field({1, 2, 1, 4})),
      unfold_case("channels_last", UnfoldOptions(3).padding(1),
                  field({2, 4, 7, 5}).contiguous(torch::MemoryFormat::ChannelsLast)),
      unfold_case("more_ranks_than_rows", UnfoldOptions(3).padding(1), field({1, 2, 3, 4})),
  };
}
SHARD_SAMPLES(Unfold, with_traffic(unfold_cases(), {{"columns", 0.5}}));

std::vector<Sample> fold_cases() {
  torch::manual_seed(62);
  const auto field = [](std::vector<int64_t> sizes) { return torch::randn(sizes); };
  return {
      fold_case("kernel_3_padding_1", FoldOptions({5, 4}, 3).padding(1), field({2, 18, 20})),
      fold_case("patches", FoldOptions({10, 4}, 2).stride(2), field({1, 8, 10})),
      fold_case("kernel_3_stride_2_leaves_rows", FoldOptions({8, 6}, 3).stride(2),
                field({1, 9, 6})),
      fold_case("stride_3_leaves_gaps", FoldOptions({12, 6}, 2).stride(3), field({1, 4, 8})),
      fold_case("dilated", FoldOptions({7, 5}, 2).dilation(2).padding(1), field({1, 8, 35})),
      fold_case("channels", FoldOptions({4, 4}, 2).stride(2), field({1, 20, 4}), 1),
      fold_case("batch", FoldOptions({5, 4}, 3).padding(1), field({5, 9, 20}), 0),
      {"unbatched",
       {sharded(field({9, 20}), 1)},
       [](const Tensors& t) {
         return bent(torch::col2im(t[0], {5, 4}, {3, 3}, {1, 1}, {1, 1}, {1, 1}));
       }},
      {"unfold_work_fold",
       {sharded(field({1, 2, 9, 6}), 2)},
       [](const Tensors& t) {
         const auto columns = F::unfold(t[0], UnfoldOptions(3).padding(1).stride(2));
         return F::fold(columns.tanh(), FoldOptions({9, 6}, 3).padding(1).stride(2)) * t[0];
       }},
      {"convolution_by_hand",
       {sharded(field({1, 2, 9, 6}), 2), weight(field({3, 18}))},
       [](const Tensors& t) {
         const auto columns = F::unfold(t[0], UnfoldOptions(3).padding(1));
         return torch::matmul(t[1], columns).view({1, 3, 9, 6}).tanh();
       }},
  };
}
SHARD_SAMPLES(Fold, fold_cases());

Sample random_sample(Random& r) {
  const auto kernel = r.sizes(2, 1, 3), stride = r.sizes(2, 1, 3), dilation = r.sizes(2, 1, 2);
  const auto padding = r.sizes(2, 0, 2);
  std::vector<int64_t> image, windows;
  for (size_t i = 0; i < 2; ++i) {
    const int64_t reach = dilation[i] * (kernel[i] - 1) + 1;
    image.push_back(std::max<int64_t>(reach - 2 * padding[i], 1) + r.integer(0, 5));
    windows.push_back((image[i] + 2 * padding[i] - reach) / stride[i] + 1);
  }
  const int64_t batch = r.integer(1, 2);
  if (r.coin()) {
    return {"random",
            {sharded(r.tensor({batch, 2, image[0], image[1]}), r.integer(0, 3))},
            [=](const Tensors& t) {
              return bent(torch::im2col(t[0], kernel, dilation, padding, stride));
            }};
  }
  const std::vector<int64_t> sizes{batch, 2 * kernel[0] * kernel[1], windows[0] * windows[1]};
  return {"random", {sharded(r.tensor(sizes), r.integer(0, 2))}, [=](const Tensors& t) {
            return bent(torch::col2im(t[0], image, kernel, dilation, padding, stride));
          }};
}

Sample costly_sample(Random& r) {
  const Sample sample = random_sample(r);
  const bool moves_columns = sample.inputs[0].shard_dim == 3;
  return moves_columns ? with_costs(sample, 4.25, "an image of few rows may have nothing to cut")
                       : sample;
}
SHARD_RANDOM_SAMPLES(RandomUnfold, costly_sample);

TEST(Unfold, PatchesSendNothingAndOverlapsOneExchange) {
  run_ranks(2, [](World& world) {
    const Tensor x = scatter_tensor(torch::randn({1, 2, 8, 4}), 0, world.mesh(), {Shard(2)});
    const CommCounter counter;
    const Tensor columns = F::unfold(x, UnfoldOptions(2).stride(2));
    EXPECT_EQ(ShardTensor(columns).spec().partition(), (Partition{4, 4}));
    F::fold(columns, FoldOptions({8, 4}, 2).stride(2));
    EXPECT_EQ(counter.calls(), 0) << counter.table();
    F::fold(F::unfold(x, UnfoldOptions(3).padding(1)), FoldOptions({8, 4}, 3).padding(1));
    EXPECT_EQ(counter.calls("exchange"), 2);
    EXPECT_EQ(counter.calls(), 2) << counter.table();
  });
}

TEST(Unfold, WindowsThatDoNotFitAreRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "a window that fits", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(torch::randn({1, 2, 3, 6}), 0, mesh, {Shard(2)}, {2, 1});
    return [x] { F::unfold(x, UnfoldOptions(5)); };
  });
}

TEST(Fold, AWrongNumberOfBlocksIsRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "expected 20 blocks", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(torch::randn({1, 9, 18}), 0, mesh, {Shard(2)});
    return [x] { F::fold(x, FoldOptions({5, 4}, 3).padding(1)); };
  });
}

}  // namespace
}  // namespace shard::testing
