// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Unary = std::function<Tensor(const Tensor&)>;

Sample of(const std::string& name, const Tensor& x, int64_t dim, const Unary& f, Check check = {}) {
  return {name, {sharded(x, dim)}, [f](const Tensors& t) { return f(t[0]); }, check};
}
Tensor d(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); }

std::vector<Sample> cases() {
  torch::manual_seed(85);
  const auto x = [] { return d({2, 8, 6}); };
  const Check values{.gradients = false, .double_backward = false};
  return {
      of("cumsum", x(), 1, [](const Tensor& t) { return t.cumsum(1).square(); }),
      of("cumsum_of_another_dim", x(), 1, [](const Tensor& t) { return t.cumsum(-1).square(); }),
      of("cumsum_of_a_line", d({11}), 0, [](const Tensor& t) { return t.cumsum(0).square(); }),
      of("cumsum_of_one_row", d({1, 5}), 0, [](const Tensor& t) { return t.cumsum(0).square(); }),
      of("cumsum_of_a_transpose", d({7, 5}), 0,
         [](const Tensor& t) { return t.t().cumsum(1).square(); }),
      of("cumsum_of_a_pending_sum", x(), 1, [](const Tensor& t) { return t.sum(1).cumsum(1); }),
      of("cumsum_in_another_precision", x().to(at::kFloat), 1,
         [](const Tensor& t) { return t.cumsum(1, at::kDouble).square(); },
         {.both_precisions = false}),
      of(
          "cumsum_of_integers", torch::randint(0, 9, {7, 3}, at::kInt), 0,
          [](const Tensor& t) { return t.cumsum(0); }, values),
      of(
          "cumsum_of_a_mask", torch::randint(0, 2, {7, 3}, at::kBool), 0,
          [](const Tensor& t) { return t.cumsum(0); }, values),
      of(
          "cumsum_to_smaller_integers", torch::randint(0, 9, {7, 3}), 0,
          [](const Tensor& t) { return t.cumsum(0, at::kInt); }, values),
      of("cumprod_in_place", x(), 1,
         [](const Tensor& t) {
           Tensor y = t * 2;
           return y.cumprod_(1);
         },
         {.traffic = 4}),
      of("cumsum_in_place", x(), 1,
         [](const Tensor& t) {
           Tensor y = t * 2;
           return y.cumsum_(1).square();
         }),
  };
}
SHARD_SAMPLES(Scans, cases());

/// Infinite values stay with the lines that have them.
std::vector<Sample> infinite_cases() {
  torch::manual_seed(86);
  Tensor x = d({8, 3});
  x.select(1, 2).select(0, 3).fill_(std::numeric_limits<double>::infinity());
  return {of("cumsum_of_infinity", x, 0, [](const Tensor& t) { return t.cumsum(0); },
             {.gradients = false, .double_backward = false})};
}
SHARD_SAMPLES(InfiniteScans, infinite_cases());

Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 9);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t along = r.integer(0, last);
  return of("random", r.tensor(sizes), r.integer(0, last),
            [=](const Tensor& t) { return t.cumsum(along).square(); });
}
SHARD_RANDOM_SAMPLES(RandomScan, random_sample);

TEST(Scans, SendOneRowARankAndLeaveTheShardWhereItIs) {
  run_ranks(3, [](World& world) {
    const auto t = scatter_tensor(torch::randn({9, 6}), 0, world.mesh(), {Shard(0)}, {4, 0, 5});
    const CommCounter counter;
    EXPECT_EQ(ShardTensor(t.cumsum(0)).spec().partition(), (Partition{4, 0, 5}));
    EXPECT_EQ(counter.calls(), 1) << counter.table();
  });
}

}  // namespace
}  // namespace shard::testing
