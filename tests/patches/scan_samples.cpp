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

Sample of(const std::string& name, const Tensor& x, int64_t dim, const Unary& f,
          const Check& check = {}) {
  return {name, {sharded(x, dim)}, [f](const Tensors& t) { return f(t[0]); }, check};
}
Tensor d(const std::vector<int64_t>& sizes) { return torch::randn(sizes, at::kDouble); }

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

/// LibTorch's gradients of these make plain zeros of the sizes that they see.
std::vector<Sample> products_and_extremes() {
  torch::manual_seed(87);
  const auto x = [] { return d({2, 8, 6}); };
  const auto with_zeros = [] { return d({9, 4}).relu(); };
  const Check values{.gradients = false, .double_backward = false, .traffic = 0.75};
  const Check moves{.traffic = 1.5};
  return {
      of(
          "cumprod", x(), 1, [](const Tensor& t) { return t.cumprod(1); }, moves),
      of("cumprod_of_another_dim", x(), 1, [](const Tensor& t) { return t.cumprod(-1); }),
      of("cumprod_of_a_line", d({11}), 0, [](const Tensor& t) { return t.cumprod(0); },
         {.traffic = 8, .holds_whole = "there is no other dim to cut"}),
      of("cumprod_with_zeros", with_zeros(), 0, [](const Tensor& t) { return t.cumprod(1); }),
      of(
          "cumprod_with_zeros_along_the_cut_dim", with_zeros(), 0,
          [](const Tensor& t) { return t.cumprod(0); }, moves),
      of("cumprod_of_a_pending_sum", x(), 1, [](const Tensor& t) { return t.sum(1).cumprod(1); }),
      of(
          "cumprod_of_integers", torch::randint(0, 9, {7, 3}, at::kInt), 0,
          [](const Tensor& t) { return t.cumprod(0); }, values),
      of(
          "cummax", x(), 1, [](const Tensor& t) { return std::get<0>(t.cummax(1)).square(); },
          moves),
      of("cummax_of_another_dim", x(), 1,
         [](const Tensor& t) { return std::get<0>(t.cummax(2)).square(); }),
      of("square_of_a_sum_of_cummax", x(), 1,
         [](const Tensor& t) { return std::get<0>(t.cummax(2)).sum(1).square(); }),
      of("cummin_of_a_line", x(), 1,
         [](const Tensor& t) {
           return std::get<0>(t.select(0, 0).select(1, 0).cummin(0)).square();
         },
         {.traffic = 8}),
      of("cummin_indices", x(), 1, [](const Tensor& t) { return std::get<1>(t.cummin(1)); },
         {.traffic = 0.75}),
  };
}
SHARD_SAMPLES(ProductsAndExtremes, products_and_extremes());

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
  const int64_t kind = r.integer(0, 2);
  const int64_t cut = r.integer(0, last);
  const Tensor x = r.tensor(sizes);
  Check check;
  if (kind > 0 && cut == along) check.traffic = 3;
  if (kind > 0 && x.numel() == x.size(along)) check.holds_whole = "there is no other dim to cut";
  return of(
      "random", x, cut,
      [=](const Tensor& t) {
        if (kind == 1) return t.cumprod(along);
        if (kind == 2) return std::get<0>(t.cummin(along)).square();
        return t.cumsum(along).square();
      },
      check);
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
