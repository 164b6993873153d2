// SPDX-License-Identifier: Apache-2.0
// Sampling by grids over sharded inputs and grids equals the plain op; which rows it sends.
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
using Options = F::GridSampleFuncOptions;

Tensor field(std::vector<int64_t> sizes) { return torch::randn(sizes); }
/// Places in the image and a little beyond.
Tensor places(std::vector<int64_t> sizes) { return torch::rand(sizes) * 2.6 - 1.3; }
Input whole(const Tensor& t) { return weight(t); }

/// LibTorch has no second derivative.
Check once() {
  Check check;
  check.double_backward = false;
  return check;
}

Sample sample_case(std::string name, Options options, Input x, Input grid) {
  return {std::move(name),
          {std::move(x), std::move(grid)},
          [options](const Tensors& t) { return F::grid_sample(t[0], t[1], options); },
          once()};
}

Options options_of(Options::mode_t mode, Options::padding_mode_t padding, bool align_corners) {
  return Options().mode(mode).padding_mode(padding).align_corners(align_corners);
}

std::vector<Sample> mode_cases() {
  torch::manual_seed(81);
  std::vector<Sample> cases;
  const std::vector<std::pair<std::string, Options::mode_t>> modes{
      {"bilinear", torch::kBilinear}, {"nearest", torch::kNearest}, {"bicubic", torch::kBicubic}};
  const std::vector<std::pair<std::string, Options::padding_mode_t>> paddings{
      {"zeros", torch::kZeros}, {"border", torch::kBorder}, {"reflection", torch::kReflection}};
  for (const auto& [mode_name, mode] : modes) {
    for (const auto& [padding_name, padding] : paddings) {
      for (const bool align : {false, true}) {
        cases.push_back(
            sample_case(mode_name + "_" + padding_name + (align ? "_aligned_corners" : ""),
                        options_of(mode, padding, align), sharded(field({2, 2, 7, 5}), 2),
                        sharded(places({2, 6, 4, 2}), 1)));
      }
    }
  }
  return cases;
}
const std::string kAllRows = "the grids reach everywhere, so all rows are needed everywhere";
SHARD_SAMPLES(GridSampleMode, with_costs(mode_cases(), 1, kAllRows));

std::vector<Sample> layout_cases() {
  torch::manual_seed(82);
  const auto plain = options_of(torch::kBilinear, torch::kBorder, false);
  return {
      sample_case("whole_grid", plain, sharded(field({2, 2, 7, 5}), 2),
                  whole(places({2, 6, 4, 2}))),
      sample_case("whole_input", plain, whole(field({2, 2, 7, 5})),
                  sharded(places({2, 6, 4, 2}), 1)),
      sample_case("columns", plain, sharded(field({1, 2, 5, 7}), 3),
                  sharded(places({1, 4, 6, 2}), 2)),
      sample_case("columns_of_a_whole_grid", plain, sharded(field({1, 2, 5, 7}), 3),
                  whole(places({1, 4, 6, 2}))),
      sample_case("grid_cut_along_another_dim", plain, sharded(field({1, 2, 7, 5}), 2),
                  sharded(places({1, 4, 6, 2}), 2)),
      sample_case("grid_cut_along_coordinates", plain, sharded(field({1, 2, 7, 5}), 2),
                  sharded(places({1, 4, 6, 2}), 3)),
      sample_case("batch", plain, sharded(field({5, 2, 4, 3}), 0),
                  sharded(places({5, 3, 4, 2}), 0)),
      sample_case("batch_of_the_input", plain, sharded(field({5, 2, 4, 3}), 0),
                  whole(places({5, 3, 4, 2}))),
      sample_case("batch_of_the_grid", plain, whole(field({5, 2, 4, 3})),
                  sharded(places({5, 3, 4, 2}), 0)),
      sample_case("batch_and_rows", plain, sharded(field({5, 2, 4, 3}), 0),
                  sharded(places({5, 6, 4, 2}), 1)),
      sample_case("channels", plain, sharded(field({1, 5, 4, 3}), 1), whole(places({1, 3, 4, 2}))),
      sample_case("channels_and_rows", plain, sharded(field({1, 5, 6, 3}), 1),
                  sharded(places({1, 6, 4, 2}), 1)),
      sample_case("one_row", plain, sharded(field({1, 2, 1, 5}), 2),
                  sharded(places({1, 4, 3, 2}), 1)),
      sample_case("one_row_aligned", options_of(torch::kBilinear, torch::kReflection, true),
                  sharded(field({1, 2, 1, 5}), 2), sharded(places({1, 4, 3, 2}), 1)),
      sample_case("all_places_outside", options_of(torch::kBilinear, torch::kZeros, false),
                  sharded(field({1, 2, 7, 5}), 2), sharded(places({1, 4, 3, 2}) + 9, 1)),
      sample_case("non_contiguous", plain, sharded(field({1, 2, 5, 7}).transpose(2, 3), 2),
                  sharded(places({1, 4, 6, 2}), 1)),
      sample_case("three_dims", plain, sharded(field({1, 2, 7, 3, 4}), 2),
                  sharded(places({1, 5, 2, 3, 3}), 1)),
      sample_case("three_dims_last", options_of(torch::kBilinear, torch::kZeros, true),
                  sharded(field({1, 2, 3, 2, 7}), 4), sharded(places({1, 2, 3, 5, 3}), 3)),
      sample_case("three_dims_nearest", options_of(torch::kNearest, torch::kReflection, false),
                  sharded(field({1, 2, 4, 7, 2}), 3), whole(places({1, 3, 5, 2, 3}))),
  };
}
SHARD_SAMPLES(GridSampleLayout, with_traffic(with_costs(layout_cases(), 0, kAllRows),
                                             {{"whole_grid", 5.5},
                                              {"columns", 1},
                                              {"columns_of_a_whole_grid", 3.5},
                                              {"grid_cut_along_another_dim", 1},
                                              {"batch_and_rows", 1.25},
                                              {"non_contiguous", 1},
                                              {"three_dims", 1.75},
                                              {"three_dims_nearest", 5}}));

Sample affine_case(std::string name, Input theta, std::vector<int64_t> size, bool align) {
  return {std::move(name), {std::move(theta)}, [=](const Tensors& t) {
            const Tensor grid = F::affine_grid(t[0], size, align);
            return grid * (grid + 1);
          }};
}

std::vector<Sample> affine_cases() {
  torch::manual_seed(83);
  return {
      affine_case("batch", sharded(field({5, 2, 3}), 0), {5, 1, 3, 4}, false),
      affine_case("rows_of_theta", sharded(field({1, 2, 3}), 1), {1, 1, 7, 4}, false),
      affine_case("columns_of_theta", sharded(field({2, 2, 3}), 2), {2, 1, 7, 4}, true),
      affine_case("three_dims", sharded(field({2, 3, 4}), 0), {2, 1, 5, 4, 3}, true),
      affine_case("three_dims_columns", sharded(field({2, 3, 4}), 2), {2, 1, 5, 4, 3}, false),
      {"spatial_transformer",
       {sharded(field({2, 3, 7, 5}), 2), weight(field({6, 3}) * 0.1)},
       [](const Tensors& t) {
         const Tensor features = torch::linear(t[0].mean({2, 3}).tanh(), t[1]);
         const Tensor identity = torch::tensor({1, 0, 0, 0, 1, 0}, t[1].options());
         const Tensor theta = (features + identity).view({2, 2, 3});
         return F::grid_sample(t[0], F::affine_grid(theta, {2, 3, 7, 5}, false),
                               Options().align_corners(false));
       },
       once()},
  };
}
SHARD_SAMPLES(AffineGrid, affine_cases());

/// One or both cut, along any dim.
Sample random_sample(Random& r) {
  const int64_t spatial = r.integer(2, 3);
  auto sizes = r.sizes(spatial, 1, 7);
  auto to = r.sizes(spatial, 1, 6);
  const int64_t batch = r.integer(1, 2);
  sizes.insert(sizes.begin(), {batch, 2});
  to.insert(to.begin(), batch);
  to.push_back(spatial);
  const int64_t mode = r.integer(0, spatial == 2 ? 2 : 1), padding = r.integer(0, 2);
  const bool align = r.coin();
  const Tensor grid = r.tensor(to).tanh() * 1.3;
  const bool cuts_grid = r.coin();
  const bool cuts_input = !cuts_grid || r.coin();
  return {
      "random",
      {cuts_input ? sharded(r.tensor(sizes), r.integer(0, spatial + 1)) : weight(r.tensor(sizes)),
       cuts_grid ? sharded(grid, r.integer(0, spatial + 1)) : weight(grid)},
      [=](const Tensors& t) { return torch::grid_sampler(t[0], t[1], mode, padding, align); },
      once()};
}

Sample costly_sample(Random& r) { return with_costs(random_sample(r), 6, kAllRows); }
SHARD_RANDOM_SAMPLES(RandomGridSample, costly_sample);

/// Rows are found in floating point; identity grids hit them exactly.
TEST(GridSample, IdentityAndScaledGridsNameTheSameRowsAsLibTorch) {
  torch::manual_seed(84);
  run_ranks(3, [](World& world) {
    const Tensor image = torch::randn({1, 2, 11, 6});
    for (const int64_t rows : {11, 5, 22, 13}) {
      for (const bool align : {false, true}) {
        const Tensor identity = torch::eye(3).slice(0, 0, 2).unsqueeze(0);
        const Tensor grid = F::affine_grid(identity, {1, 2, rows, 6}, align).requires_grad_();
        for (const int64_t mode : {0, 1, 2}) {
          const Tensor want = torch::grid_sampler(image, grid, mode, 1, align);
          const Tensor x = scatter_tensor(image, 0, world.mesh(), {Shard(2)}, {5, 0, 6});
          const Tensor own_grid = grid.detach().clone().requires_grad_();
          const Tensor y = torch::grid_sampler(x, own_grid, mode, 1, align);
          EXPECT_LE(relative_error(ShardTensor(y).full(), want), 1e-5)
              << rows << " rows, mode " << mode << ", aligned " << align;
        }
      }
    }
  });
}

TEST(GridSample, SendsTheRowsThatTheGridReaches) {
  run_ranks(2, [](World& world) {
    const Tensor identity = torch::eye(3).slice(0, 0, 2).unsqueeze(0);
    const Tensor grid = F::affine_grid(identity, {1, 1, 32, 4}, false);
    const Tensor x = scatter_tensor(field({1, 1, 32, 4}), 0, world.mesh(), {Shard(2)});
    const Tensor own_grid = scatter_tensor(grid * 0.99, 0, world.mesh(), {Shard(1)});
    const CommCounter counter;
    torch::grid_sampler(x, own_grid, 0, 0, false);
    EXPECT_LE(counter.bytes("exchange"), static_cast<int64_t>(2 * 4 * sizeof(float)))
        << counter.table();
  });
}

TEST(GridSample, GridsOfAnotherBatchAreRefusedAlikeOnEveryRank) {
  expect_same_error<c10::Error>(2, "same batch size", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(field({2, 1, 6, 6}), 0, mesh, {Shard(2)});
    return [x] { torch::grid_sampler(x, places({3, 4, 4, 2}), 0, 0, false); };
  });
}

}  // namespace
}  // namespace shard::testing
