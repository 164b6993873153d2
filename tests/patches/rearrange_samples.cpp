// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

Sample of(const std::string& name, const std::function<at::Tensor(const at::Tensor&)>& f,
          const std::vector<int64_t>& sizes = {2, 8, 6}, int64_t dim = 1) {
  return {name, {sharded(torch::randn(sizes, at::kDouble), dim)}, [f](const Tensors& t) {
            return f(t[0]).square();
          }};
}

std::vector<Sample> cases() {
  torch::manual_seed(80);
  return {
      of("flip", [](const at::Tensor& t) { return t.flip({1}); }),
      of("flip_of_all_dims",
         [](const at::Tensor& t) {
           return t.flip({0, -1, 1});
         }),
      of("flip_of_other_dims",
         [](const at::Tensor& t) {
           return t.flip({0, 2});
         }),
      of("roll", [](const at::Tensor& t) { return t.roll(3, 1); }),
      of("roll_backwards", [](const at::Tensor& t) { return t.roll(-1, 1); }),
      of("roll_by_more_than_all", [](const at::Tensor& t) { return t.roll(19, 1); }),
      of("roll_by_nothing", [](const at::Tensor& t) { return t.roll(8, 1); }),
      of("roll_of_two_dims",
         [](const at::Tensor& t) {
           return t.roll({2, -1}, {1, 2});
         }),
      of("roll_of_one_dim_twice",
         [](const at::Tensor& t) {
           return t.roll({2, 3}, {1, 1});
         }),
      of("roll_of_another_dim", [](const at::Tensor& t) { return t.roll(1, 0); }),
      of("roll_of_the_flattened_tensor", [](const at::Tensor& t) { return t.roll(5); }),
      of("roll_of_the_flattened_tensor_backwards", [](const at::Tensor& t) { return t.roll(-21); }),
      of("rotated_by_90_degrees",
         [](const at::Tensor& t) {
           return t.rot90(1, {1, 2});
         }),
      of("roll_of_a_pending_sum", [](const at::Tensor& t) { return t.sum(1).roll(1, 1); }),
  };
}
SHARD_SAMPLES(Rearranged, with_traffic(cases(), {{"flip", 2},
                                                 {"flip_of_all_dims", 2},
                                                 {"roll_of_the_flattened_tensor", 3},
                                                 {"roll_of_the_flattened_tensor_backwards", 3}}));

/// Flips and rolls of any dims by any amounts.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 8);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t along = r.integer(0, last);
  const int64_t shift = r.integer(-9, 9);
  const bool flips = r.coin();
  const Input input = sharded(r.tensor(sizes), r.integer(0, last));
  const Function function = [=](const Tensors& t) {
    return flips ? t[0].flip({along}).square() : t[0].roll(shift, along).square();
  };
  return {
      "random", {input}, function, Check{.traffic = flips && along == input.shard_dim ? 2. : 0.}};
}
SHARD_RANDOM_SAMPLES(RandomRearrange, random_sample);

TEST(Rearranged, RowsTravelInOneExchange) {
  run_ranks(3, [](World& world) {
    const auto t = scatter_tensor(torch::randn({8, 2}), 0, world.mesh(), {Shard(0)}, {1, 5, 2});
    const CommCounter counter;
    EXPECT_EQ(ShardTensor(t.flip(0)).spec().partition(), (Partition{1, 5, 2}));
    (void)t.roll(3, 0);
    EXPECT_EQ(counter.calls("exchange"), 2) << counter.table();
    EXPECT_EQ(counter.calls(), 2) << counter.table();
  });
}

}  // namespace
}  // namespace shard::testing
