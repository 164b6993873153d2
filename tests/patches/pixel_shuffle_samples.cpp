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

using torch::Tensor;
using Tensors = std::vector<Tensor>;

/// The ops are linear: their double backward shows behind something that is not.
Tensor bent(const Tensor& y) { return y * (y + 1); }

Sample shuffle_case(std::string name, Tensor x, int64_t dim, int64_t factor = 2) {
  return {std::move(name), {sharded(std::move(x), dim)}, [factor](const Tensors& t) {
            return bent(torch::pixel_shuffle(t[0], factor));
          }};
}
Sample unshuffle_case(std::string name, Tensor x, int64_t dim, int64_t factor = 2) {
  return {std::move(name), {sharded(std::move(x), dim)}, [factor](const Tensors& t) {
            return bent(torch::pixel_unshuffle(t[0], factor));
          }};
}
Sample channels_case(std::string name, Tensor x, int64_t dim, int64_t groups) {
  return {std::move(name), {sharded(std::move(x), dim)}, [groups](const Tensors& t) {
            return bent(torch::channel_shuffle(t[0], groups));
          }};
}

std::vector<Sample> cases() {
  torch::manual_seed(51);
  const auto field = [](std::vector<int64_t> sizes) { return torch::randn(sizes); };
  return {
      shuffle_case("rows", field({2, 8, 7, 3}), 2),
      shuffle_case("columns", field({1, 8, 3, 7}), 3),
      shuffle_case("channels", field({1, 20, 3, 2}), 1),
      shuffle_case("batch", field({5, 4, 3, 2}), 0),
      shuffle_case("unbatched", field({9, 7, 2}), 1, 3),
      shuffle_case("non_contiguous", field({1, 4, 3, 7}).transpose(2, 3), 2),
      unshuffle_case("back_rows", field({2, 2, 14, 6}), 2),
      unshuffle_case("back_columns", field({1, 2, 4, 14}), 3),
      unshuffle_case("back_channels", field({1, 5, 4, 4}), 1),
      unshuffle_case("back_batch", field({5, 1, 4, 4}), 0),
      unshuffle_case("back_unbatched_by_3", field({2, 9, 6}), 1, 3),
      channels_case("channel_shuffle_rows", field({2, 6, 7, 3}), 2, 3),
      channels_case("channel_shuffle_channels", field({2, 6, 7, 3}), 1, 2),
      channels_case("channel_shuffle_batch", field({5, 6, 2, 3}), 0, 2),
      {"there_and_back",
       {sharded(field({1, 4, 7, 3}), 2)},
       [](const Tensors& t) {
         return bent(torch::pixel_unshuffle(torch::pixel_shuffle(t[0], 2).tanh(), 2));
       }},
      {"upscaling_module",
       {sharded(field({1, 3, 7, 5}), 2), weight(field({8, 3, 3, 3}))},
       [](const Tensors& t) {
         const Tensor y = torch::conv2d(t[0], t[1], {}, 1, 1);
         return torch::nn::PixelShuffle(torch::nn::PixelShuffleOptions(2))->forward(y).relu();
       }},
  };
}
SHARD_SAMPLES(PixelShuffle, with_traffic(cases(), {{"channel_shuffle_channels", 1.5}}));

Sample random_sample(Random& r) {
  const int64_t factor = r.integer(1, 3);
  const bool back = r.coin();
  const int64_t rows = r.integer(1, 4), columns = r.integer(1, 4), channels = r.integer(1, 3);
  const std::vector<int64_t> sizes =
      back ? std::vector<int64_t>{r.integer(1, 2), channels, rows * factor, columns * factor}
           : std::vector<int64_t>{r.integer(1, 2), channels * factor * factor, rows, columns};
  return {"random", {sharded(r.tensor(sizes), r.integer(0, 3))}, [=](const Tensors& t) {
            return back ? torch::pixel_unshuffle(t[0], factor) : torch::pixel_shuffle(t[0], factor);
          }};
}
SHARD_RANDOM_SAMPLES(RandomPixelShuffle, random_sample);

TEST(PixelShuffle, SendsNothingAndMultipliesTheShards) {
  run_ranks(3, [](World& world) {
    const Tensor x =
        scatter_tensor(torch::randn({1, 8, 9, 5}), 0, world.mesh(), {Shard(2)}, Partition{4, 2, 3});
    const CommCounter counter;
    const Tensor y = torch::pixel_shuffle(x, 2);
    EXPECT_EQ(ShardTensor(y).spec().partition(), (Partition{8, 4, 6}));
    EXPECT_EQ(ShardTensor(torch::pixel_unshuffle(y, 2)).spec().partition(), (Partition{4, 2, 3}));
    EXPECT_EQ(counter.calls(), 0) << counter.table();
  });
}

TEST(PixelShuffle, RowsThatTheFactorDoesNotDivideAreRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "a multiple of 2", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(torch::randn({1, 2, 7, 6}), 0, mesh, {Shard(2)}, {4, 3});
    return [x] { torch::pixel_unshuffle(x, 2); };
  });
}

}  // namespace
}  // namespace shard::testing
