// SPDX-License-Identifier: Apache-2.0
// Fractional max pooling over sharded inputs equals the plain op with the same random numbers.
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/rank_errors.h>
#include <support/samples.h>
#include <torch/torch.h>

#include <cmath>

namespace shard::testing {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

Tensor field(std::vector<int64_t> sizes) { return torch::randn(sizes); }

Sample pool_case(std::string name, Tensor x, int64_t dim, std::vector<int64_t> kernel,
                 std::vector<int64_t> size, bool indices = false) {
  const auto spatial = static_cast<int64_t>(kernel.size());
  const bool batched = x.dim() == spatial + 2;
  const Tensor samples =
      torch::rand({batched ? x.size(0) : 1, x.size(-spatial - 1), spatial}, x.options());
  Check check;
  check.gradients = !indices;
  check.double_backward = false;  // LibTorch has none
  return {std::move(name),
          {sharded(std::move(x), dim), constant(samples)},
          [=](const Tensors& t) {
            const auto [y, places] = spatial == 2
                                         ? torch::fractional_max_pool2d(t[0], kernel, size, t[1])
                                         : torch::fractional_max_pool3d(t[0], kernel, size, t[1]);
            return indices ? places : y * y;
          },
          check};
}

std::vector<Sample> cases() {
  torch::manual_seed(95);
  Tensor with_nan = field({1, 2, 9, 7});
  with_nan.slice(1, 0, 1).slice(2, 0, 9, 3).fill_(NAN);
  return {
      pool_case("rows", field({2, 3, 11, 6}), 2, {2, 2}, {6, 4}),
      pool_case("columns", field({1, 3, 5, 11}), 3, {2, 3}, {3, 5}),
      pool_case("windows_of_three", field({2, 2, 11, 5}), 2, {3, 2}, {5, 3}),
      pool_case("windows_apart", field({1, 2, 13, 5}), 2, {1, 1}, {4, 3}),
      pool_case("to_one_row", field({1, 2, 7, 5}), 2, {3, 2}, {1, 2}),
      pool_case("to_as_many_rows_as_fit", field({1, 2, 7, 5}), 2, {2, 2}, {6, 4}),
      pool_case("batch", field({5, 2, 6, 5}), 0, {2, 2}, {3, 3}),
      pool_case("channels", field({2, 5, 6, 5}), 1, {2, 2}, {3, 3}),
      pool_case("unbatched", field({3, 11, 6}), 1, {2, 2}, {6, 4}),
      pool_case("unbatched_channels", field({5, 6, 6}), 0, {2, 2}, {3, 4}),
      pool_case("non_contiguous", field({2, 3, 6, 11}).transpose(2, 3), 2, {2, 2}, {6, 4}),
      pool_case("one_row", field({1, 2, 1, 5}), 2, {1, 2}, {1, 3}),
      pool_case("ties", field({1, 2, 11, 6}).relu(), 2, {3, 2}, {5, 4}),
      pool_case("three_dims", field({2, 2, 9, 5, 4}), 2, {2, 2, 2}, {4, 3, 2}),
      pool_case("three_dims_last", field({1, 2, 4, 5, 9}), 4, {2, 2, 3}, {2, 3, 4}),
      pool_case("indices_rows", field({2, 3, 11, 6}), 2, {2, 2}, {6, 4}, true),
      pool_case("indices_columns", field({2, 3, 6, 11}), 3, {2, 2}, {4, 6}, true),
      pool_case("indices_three_dims", field({1, 2, 4, 9, 5}), 3, {2, 2, 2}, {2, 4, 3}, true),
      pool_case("indices_of_ties_in_rows", torch::ones({1, 2, 9, 6}), 2, {3, 3}, {4, 3}, true),
      pool_case("indices_of_ties_in_columns", torch::ones({1, 2, 6, 9}), 3, {3, 3}, {3, 4}, true),
      pool_case("indices_of_nan", with_nan, 2, {3, 3}, {4, 3}, true),
  };
}
SHARD_SAMPLES(FractionalMaxPool, cases());

Sample random_sample(Random& r) {
  const int64_t spatial = r.integer(2, 3);
  const auto kernel = r.sizes(spatial, 1, 3);
  auto size = r.sizes(spatial, 1, 5);
  std::vector<int64_t> sizes{r.integer(1, 2), 2};
  for (size_t i = 0; i < kernel.size(); ++i) {
    sizes.push_back(size[i] + kernel[i] + r.integer(spatial == 2 ? -1 : 0, 4));
  }
  return pool_case("random", r.tensor(sizes), r.integer(0, spatial + 1), kernel, size, r.coin());
}
SHARD_RANDOM_SAMPLES(RandomFractionalMaxPool, random_sample);

TEST(FractionalMaxPool, TooManyOutputRowsAreRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "expected at least 8 rows", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(field({1, 2, 7, 6}), 0, mesh, {Shard(2)});
    return [x] { torch::fractional_max_pool2d(x, {2, 2}, {7, 3}, torch::rand({1, 2, 2})); };
  });
}

}  // namespace
}  // namespace shard::testing
