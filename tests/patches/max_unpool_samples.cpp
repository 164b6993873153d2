// SPDX-License-Identifier: Apache-2.0
// Unpooling over sharded values equals the plain op: indices of pooling, and any others.
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

Tensor field(const std::vector<int64_t>& sizes) { return torch::randn(sizes); }
/// The op is linear: its double backward shows behind something that is not.
Tensor bent(const Tensor& y) { return y * (y + 1); }
/// Different places of (batch, channels, values...) among `places`.
Tensor anywhere(int64_t planes, int64_t values, int64_t places) {
  std::vector<Tensor> rows;
  for (int64_t plane = 0; plane < planes; ++plane)
    rows.push_back(torch::randperm(places).slice(0, 0, values));
  return torch::stack(rows);
}

/// Pooled and brought back.
Sample pool_case(std::string name, Tensor x, int64_t dim, int64_t kernel, int64_t stride,
                 int64_t padding = 0) {
  return {std::move(name), {sharded(std::move(x), dim)}, [=](const Tensors& t) {
            const auto [y, indices] = torch::max_pool2d_with_indices(t[0], kernel, stride, padding);
            return bent(torch::max_unpool2d(y.tanh(), indices, t[0].sizes().slice(2)));
          }};
}

std::vector<Sample> cases() {
  torch::manual_seed(91);
  const auto unpool = [](const Tensors& t) {
    return bent(torch::max_unpool2d(t[0], t[1], {7, 6}));
  };
  const Tensor indices = anywhere(6, 20, 42).view({2, 3, 5, 4});
  return {
      pool_case("kernel_2", field({2, 3, 10, 6}), 2, 2, 2),
      pool_case("kernel_2_odd_rows", field({2, 3, 11, 6}), 2, 2, 2),
      pool_case("overlapping_windows", field({1, 3, 9, 7}), 2, 3, 2, 1),
      pool_case("columns", field({1, 2, 5, 11}), 3, 2, 2),
      pool_case("channels", field({1, 5, 6, 4}), 1, 2, 2),
      pool_case("batch", field({5, 1, 6, 4}), 0, 2, 2),
      {"any_places", {sharded(field({2, 3, 5, 4}), 2), constant(indices, 2)}, unpool},
      {"any_places_columns", {sharded(field({2, 3, 5, 4}), 3), constant(indices, 3)}, unpool},
      {"whole_indices", {sharded(field({2, 3, 5, 4}), 2), constant(indices)}, unpool},
      {"whole_values", {weight(field({2, 3, 5, 4})), constant(indices, 2)}, unpool},
      {"cut_along_other_dims", {sharded(field({2, 3, 5, 4}), 2), constant(indices, 3)}, unpool},
      {"unbatched",
       {sharded(field({3, 5, 4}), 1), constant(anywhere(3, 20, 42).view({3, 5, 4}), 1)},
       unpool},
      {"non_contiguous",
       {sharded(field({2, 3, 4, 5}).transpose(2, 3), 2), constant(indices, 2)},
       unpool},
      {"one_row",
       {sharded(field({1, 2, 1, 4}), 2), constant(anywhere(2, 4, 42).view({1, 2, 1, 4}), 2)},
       unpool},
      {"one_dim",
       {sharded(field({2, 3, 11}), 2)},
       [](const Tensors& t) {
         const auto [y, places] = torch::max_pool1d_with_indices(t[0], 3, 3);
         return bent(F::max_unpool1d(
             y, places, F::MaxUnpool1dFuncOptions(3).output_size(std::vector<int64_t>{2, 3, 11})));
       }},
      {"three_dims",
       {sharded(field({1, 2, 7, 4, 5}), 2)},
       [](const Tensors& t) {
         const auto [y, places] = torch::max_pool3d_with_indices(t[0], 2, 2);
         return bent(torch::max_unpool3d(y, places, {7, 4, 5}, {2, 2, 2}, {0, 0, 0}));
       }},
      {"three_dims_of_any_size",
       {sharded(field({1, 2, 6, 4, 4}), 2)},
       [](const Tensors& t) {
         const auto [y, places] = torch::max_pool3d_with_indices(t[0], 2, 2);
         const auto size = t[0].sizes().slice(2);
         return bent(torch::max_unpool3d(y, places, size, {2, 2, 2}, {0, 0, 0}));
       }},
      {"three_dims_middle",
       {sharded(field({1, 2, 4, 7, 5}), 3)},
       [](const Tensors& t) {
         const auto [y, places] = torch::max_pool3d_with_indices(t[0], 2, 2);
         return bent(torch::max_unpool3d(y, places, {4, 7, 5}, {2, 2, 2}, {0, 0, 0}));
       }},
  };
}
const std::map<std::string, double> kTraffic{
    {"overlapping_windows", 0.25}, {"columns", 0.5},       {"any_places", 4},
    {"any_places_columns", 3.75},  {"whole_values", 1.75}, {"cut_along_other_dims", 2.5},
    {"unbatched", 4.25},           {"non_contiguous", 4},  {"one_row", 3.5}};
SHARD_SAMPLES(MaxUnpool, with_traffic(cases(), kTraffic));

Sample random_sample(Random& r) {
  const auto sizes = r.sizes(2, 1, 6);
  const std::vector<int64_t> to{sizes[0] + r.integer(0, 4), sizes[1] + r.integer(0, 4)};
  const int64_t batch = r.integer(1, 2);
  const Tensor places =
      anywhere(batch * 2, sizes[0] * sizes[1], to[0] * to[1]).view({batch, 2, sizes[0], sizes[1]});
  const int64_t dim = r.integer(0, 3);
  return {"random",
          {sharded(r.tensor({batch, 2, sizes[0], sizes[1]}), dim),
           constant(places, r.coin() ? dim : -1)},
          [=](const Tensors& t) { return torch::max_unpool2d(t[0], t[1], to); }};
}

Sample costly_sample(Random& r) {
  const Sample sample = random_sample(r);
  const bool cuts_space = sample.inputs[0].shard_dim >= 2;
  return with_costs(sample, cuts_space ? 6 : 0);
}
SHARD_RANDOM_SAMPLES(RandomMaxUnpool, costly_sample);

TEST(MaxUnpool, PlacesOfWindowsThatNoBoundaryCutsSendNoRows) {
  run_ranks(2, [](World& world) {
    const Tensor x = scatter_tensor(field({1, 2, 12, 6}), 0, world.mesh(), {Shard(2)}, {8, 4});
    const auto [y, indices] = torch::max_pool2d_with_indices(x, 2, 2);
    const CommCounter counter;
    const Tensor z = torch::max_unpool2d(y, indices, {12, 6});
    EXPECT_EQ(counter.calls("exchange"), 0) << counter.table();
    EXPECT_EQ(ShardTensor(z).spec().partition(), (Partition{8, 4}));
  });
}

TEST(MaxUnpool, PlacesThatDoNotExistAreRefusedAlikeOnEveryRank) {
  run_ranks(2, [](World& world) {
    const Tensor x = scatter_tensor(field({1, 1, 8, 2}), 0, world.mesh(), {Shard(2)});
    const Tensor places = torch::arange(16).flip(0).view({1, 1, 8, 2});
    EXPECT_NO_THROW(torch::max_unpool2d(x, places, {8, 2}));
    EXPECT_THROW(torch::max_unpool2d(x, places + 16, {8, 2}), SpecMismatch);
  });
}

TEST(MaxUnpool, IndicesOfAnotherSizeAreRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "the same sizes", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(field({1, 2, 6, 6}), 0, mesh, {Shard(2)});
    return [x] { torch::max_unpool2d(x, torch::zeros({1, 2, 6, 5}, torch::kLong), {12, 12}); };
  });
}

}  // namespace
}  // namespace shard::testing
