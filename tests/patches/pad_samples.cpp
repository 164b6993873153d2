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
using Pad = F::PadFuncOptions;

/// Padding is linear: its double backward shows behind something that is not.
Tensor bent(const Tensor& y) { return y * (y + 1); }

template <class Mode>
Sample pad_case(std::string name, std::vector<int64_t> pad, Mode mode,
                std::vector<int64_t> sizes = {1, 2, 9, 5}, int64_t dim = 2) {
  return {std::move(name), {sharded(torch::randn(sizes), dim)}, [pad, mode](const Tensors& t) {
            return bent(F::pad(t[0], Pad(pad).mode(mode)));
          }};
}

std::vector<Sample> cases() {
  torch::manual_seed(9);
  const auto constant_mode = torch::kConstant;
  const auto reflect = torch::kReflect;
  const auto replicate = torch::kReplicate;
  const auto circular = torch::kCircular;
  return {
      pad_case("constant_all_sides", {1, 2, 3, 1}, constant_mode),
      pad_case("constant_sharded_dim_only", {0, 0, 2, 3}, constant_mode),
      pad_case("constant_unsharded_dim_only", {2, 1}, constant_mode),
      pad_case("constant_channels_and_batch", {0, 0, 1, 0, 1, 1, 0, 2}, constant_mode),
      pad_case("constant_of_one_dim", {2, 1}, constant_mode, {9}, 0),
      pad_case("constant_batch_shard", {1, 1, 1, 1}, constant_mode, {5, 2, 4, 4}, 0),
      pad_case("nothing_to_pad", {0, 0, 0, 0}, constant_mode),
      pad_case("crop", {0, 0, -2, -1}, constant_mode),
      pad_case("crop_more_than_a_shard", {0, 0, -6, 0}, constant_mode),
      pad_case("crop_before_pad_after", {1, 0, -3, 2}, constant_mode),
      pad_case("crop_columns_of_row_shards", {-1, -2}, constant_mode),
      pad_case("reflect_rows", {0, 0, 2, 2}, reflect),
      pad_case("reflect_all_sides", {1, 3, 2, 1}, reflect),
      pad_case("reflect_over_several_shards", {0, 0, 7, 6}, reflect),
      pad_case("reflect_columns", {2, 2, 0, 0}, reflect),
      pad_case("reflect_before_crop_after", {0, 1, 2, -2}, reflect),
      pad_case("reflect_one_dim", {3, 2}, reflect, {2, 3, 9}),
      pad_case("reflect_unbatched", {1, 1, 2, 1}, reflect, {2, 9, 4}, 1),
      pad_case("reflect_three_dims", {1, 0, 0, 1, 2, 2}, reflect, {1, 2, 8, 3, 3}),
      pad_case("replicate_rows", {0, 0, 3, 2}, replicate),
      pad_case("replicate_all_sides", {1, 2, 2, 3}, replicate),
      pad_case("replicate_more_than_there_is", {0, 0, 12, 0}, replicate),
      pad_case("replicate_after_a_crop", {0, 0, -2, 3}, replicate),
      pad_case("replicate_one_dim", {3, 2}, replicate, {2, 3, 9}),
      pad_case("replicate_three_dims", {1, 0, 0, 1, 2, 2}, replicate, {1, 2, 8, 3, 3}),
      pad_case("circular_rows", {0, 0, 1, 1}, circular),
      pad_case("circular_all_sides", {1, 2, 2, 3}, circular),
      pad_case("circular_columns_of_row_shards", {1, 1, 0, 0}, circular),
      pad_case("circular_once_around", {0, 0, 9, 9}, circular),
      pad_case("circular_one_sided", {0, 0, 0, 4}, circular),
      pad_case("circular_with_a_crop", {0, 0, 2, -3}, circular),
      pad_case("circular_one_dim", {3, 2}, circular, {2, 3, 9}),
      pad_case("circular_three_dims", {1, 0, 0, 1, 2, 2}, circular, {1, 2, 8, 3, 3}),
      pad_case("circular_channel_shard", {1, 1, 1, 1}, circular, {1, 5, 4, 4}, 1),
      {"constant_value",
       {sharded(torch::randn({1, 2, 9, 5}), 2)},
       [](const Tensors& t) {
         return bent(torch::constant_pad_nd(t[0], {1, 1, 2, 2}, 3.5));
       }},
      {"string_mode",
       {sharded(torch::randn({1, 2, 9, 5}), 2)},
       [](const Tensors& t) {
         return bent(torch::pad(t[0], {1, 1, 2, 2}, "reflect"));
       }},
      {"double_precision",
       {sharded(torch::randn({1, 2, 9, 5}, torch::kDouble), 2)},
       [](const Tensors& t) {
         return bent(torch::pad(t[0], {1, 1, 2, 2}, "circular"));
       }},
      {"in_place_op_on_the_result_leaves_the_input",
       {sharded(torch::randn({1, 2, 9, 5}), 2)},
       [](const Tensors& t) {
         return F::pad(t[0], Pad({0, 0, 1, 0})).mul_(2) + t[0].sum();
       }},
      {"modules",
       {sharded(torch::randn({1, 2, 9, 5}), 2)},
       [](const Tensors& t) {
         return torch::nn::Sequential(torch::nn::ReflectionPad2d(1), torch::nn::ReplicationPad2d(1),
                                      torch::nn::ZeroPad2d(1), torch::nn::ConstantPad2d(1, 2.0))
             ->forward(t[0]);
       }},
  };
}
SHARD_SAMPLES(Padding, cases());

/// Any mode that the number of dims has, amounts up to what it allows.
Sample random_sample(Random& r) {
  const int64_t spatial = r.integer(1, 3);
  auto sizes = r.sizes(spatial, 2, 8);
  const auto mode = r.one_of<std::string>({"constant", "reflect", "replicate", "circular"});
  std::vector<int64_t> amounts;
  for (size_t i = sizes.size(); i-- > 0;) {
    for (int side = 0; side < 2; ++side) {
      amounts.push_back(
          r.integer(mode == "constant" ? -1 : 0, mode == "reflect" ? sizes[i] - 1 : sizes[i]));
    }
  }
  if (mode == "constant") amounts.resize(static_cast<size_t>(2 * r.integer(1, spatial)));
  sizes.insert(sizes.begin(), {r.integer(1, 2), 2});
  return {"random",
          {sharded(r.tensor(sizes), r.integer(0, spatial + 1))},
          [=](const std::vector<at::Tensor>& t) { return at::pad(t[0], amounts, mode).square(); }};
}
SHARD_RANDOM_SAMPLES(RandomPad, random_sample);

void expect_messages(int64_t exchanges, std::vector<int64_t> pad, const std::string& mode,
                     Partition partition) {
  run_ranks(static_cast<int>(partition.size()), [&](World& world) {
    const auto mesh = world.mesh();
    const Tensor x = scatter_tensor(torch::randn({1, 2, 9, 5}), 0, mesh, {Shard(2)}, partition);
    const CommCounter counter;
    torch::pad(x, pad, mode);
    EXPECT_EQ(counter.calls("exchange"), exchanges) << mode;
    EXPECT_EQ(counter.calls(), exchanges) << mode;
  });
}

TEST(PaddingMessages, UnshardedDimsSendNothing) {
  for (const auto* mode : {"constant", "reflect", "replicate", "circular"}) {
    expect_messages(0, {2, 1, 0, 0}, mode, {4, 2, 3});
  }
}
TEST(PaddingMessages, OnlyWrappedAndFarReflectedRowsAreSent) {
  expect_messages(0, {1, 1, 2, 2}, "constant", {4, 2, 3});
  expect_messages(0, {1, 1, 2, 2}, "replicate", {4, 2, 3});
  expect_messages(0, {1, 1, 2, 2}, "reflect", {4, 2, 3});
  expect_messages(1, {1, 1, 4, 2}, "reflect", {4, 2, 3});
  expect_messages(1, {1, 1, 2, 2}, "circular", {4, 2, 3});
}

TEST(Padding, RowsBelongToTheFirstAndLastRankWithRows) {
  run_ranks(4, [](World& world) {
    const Tensor x =
        scatter_tensor(torch::randn({1, 2, 9, 5}), 0, world.mesh(), {Shard(2)}, {0, 4, 5, 0});
    const auto partition = [&](std::vector<int64_t> pad) {
      return ShardTensor(torch::constant_pad_nd(x, pad)).spec().partition();
    };
    EXPECT_EQ(partition({0, 0, 2, 3}), (Partition{0, 6, 8, 0}));
    EXPECT_EQ(partition({0, 0, -5, 0}), (Partition{0, 0, 4, 0}));
  });
}

TEST(Padding, TooLargeReflectionIsRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "less than the number of rows", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(torch::randn({1, 2, 4, 5}), 0, mesh, {Shard(2)});
    return [x] { torch::pad(x, {0, 0, 4, 0}, "reflect"); };
  });
}
TEST(Padding, WrappingTwiceIsRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "wrapping around once", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(torch::randn({1, 2, 4, 5}), 0, mesh, {Shard(2)});
    return [x] { torch::pad(x, {0, 0, 5, 0}, "circular"); };
  });
}
TEST(Padding, CroppingEverythingIsRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "crop no more rows", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(torch::randn({1, 2, 4, 5}), 0, mesh, {Shard(2)});
    return [x] { torch::pad(x, {0, 0, -3, -2}); };
  });
}

}  // namespace
}  // namespace shard::testing
