// SPDX-License-Identifier: Apache-2.0
// The search of one rank against all distances: the same points in the same order, whatever the
// blocks in which they come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/nearest.h>
#include <shard/points.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>

namespace shard {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

constexpr double kAnywhere = std::numeric_limits<double>::infinity();

Tensor d(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); }

Nearest search(const Tensor& points, const Tensor& queries, int64_t k, double radius = kAnywhere) {
  auto sizes = queries.sizes().vec();
  sizes.back() = k;
  return with_points(Nearest::none(sizes, radius, queries.options()), points, queries, 0);
}

/// Ordered by distance and index: stable sorting of all distances.
void expect_all_distances_agree(const Tensor& points, const Tensor& queries, int64_t k) {
  const auto found = search(points, queries, k);
  const Tensor squared = (queries.unsqueeze(1) - points.unsqueeze(0)).square().sum(2);
  const auto [sorted, order] = squared.sort(/*stable=*/std::optional<bool>(true), 1);
  EXPECT_TRUE(found.indices.equal(order.narrow(1, 0, k)));
  EXPECT_TRUE(found.squared.allclose(sorted.narrow(1, 0, k), 1e-13, 1e-13));
}

TEST(NearestTest, AreThoseOfAllDistances) {
  torch::manual_seed(1);
  for (const int64_t dims : {1, 2, 3, 8}) {
    for (const int64_t count : {1, 5, 17, 300}) {
      expect_all_distances_agree(d({count, dims}), d({50, dims}), std::min<int64_t>(count, 7));
    }
  }
}

TEST(NearestTest, EqualDistancesGoByIndex) {
  torch::manual_seed(2);
  const Tensor points = torch::randint(0, 4, {500, 3}).to(at::kDouble);
  expect_all_distances_agree(points, torch::randint(0, 4, {60, 3}).to(at::kDouble), 40);
  expect_all_distances_agree(torch::zeros({100, 2}, at::kDouble), d({4, 2}), 100);
}

TEST(NearestTest, DoNotDependOnTheBlocks) {
  torch::manual_seed(3);
  const Tensor points = torch::randint(0, 5, {203, 2}).to(at::kDouble);
  const Tensor queries = torch::randint(0, 5, {40, 2}).to(at::kDouble);
  const auto whole = search(points, queries, 9);
  auto parts = Nearest::none({40, 9}, kAnywhere, queries.options());
  for (const auto& [begin, count] : {std::pair{150, 53}, {0, 0}, {0, 1}, {1, 149}}) {
    parts = with_points(parts, points.narrow(0, begin, count), queries, begin);
  }
  EXPECT_TRUE(parts.indices.equal(whole.indices));
  EXPECT_TRUE(parts.squared.equal(whole.squared));
}

TEST(NearestTest, SortingAllDistancesGivesTheSameBits) {
  torch::manual_seed(4);
  const Tensor points = torch::randn({2, 90, 3});
  const Tensor queries = torch::randn({2, 30, 3});
  const auto none = Nearest::none({2, 30, 8}, 0.9, queries.options());
  const auto tree = with_points(none, points, queries, 0);
  const auto sorted = with_points_by_sorting(none, points, queries, 0);
  EXPECT_TRUE(tree.indices.equal(sorted.indices));
  EXPECT_TRUE(tree.squared.equal(sorted.squared));
  EXPECT_FALSE(are_points(tree.indices).all().item<bool>()) << "the radius leaves some out";
  EXPECT_TRUE(are_points(tree.indices).any().item<bool>());
}

TEST(NearestTest, PointsOnTheSphereAreWithin) {
  const Tensor points = torch::tensor({-2.0, -1.0, 0.0, 1.0, 1.0 + 1e-15}).unsqueeze(1);
  const auto found = search(points.to(at::kDouble), torch::zeros({1, 1}, at::kDouble), 4, 1);
  const Tensor count = are_points(found.indices).sum();
  EXPECT_GE(count.item<int64_t>(), 3);
  EXPECT_EQ(found.indices[0][0].item<int64_t>(), 2);
  EXPECT_EQ(found.indices[0][1].item<int64_t>(), 1);
  EXPECT_EQ(found.indices[0][2].item<int64_t>(), 3);
}

TEST(NearestTest, PointsThatAreNowhereComeLast) {
  Tensor points = d({40, 2});
  points[3][1] = std::numeric_limits<double>::quiet_NaN();
  points[7][0] = std::numeric_limits<double>::infinity();
  const auto found = search(points, d({5, 2}), 40);
  EXPECT_TRUE(found.indices.narrow(1, 38, 2).equal(torch::tensor({3, 7}).expand({5, 2})));
}

TEST(PointsTest, AreRefusedByTheirSizes) {
  const auto error_of = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const SpecMismatch& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  EXPECT_THAT(error_of([] {
                knn(d({4, 3}), d({5, 3}), 5);
              }),
              HasSubstr("[shard::knn] got k = 5 for 4 points; expected 1 <= k <= points"));
  EXPECT_THAT(error_of([] { knn(d({4, 3}), d({5, 2}), 1); }), HasSubstr("expected (N, D)"));
  EXPECT_THAT(error_of([] {
                knn(torch::zeros({4, 3}, at::kLong), d({5, 3}), 1);
              }),
              HasSubstr("expected floating-point coordinates"));
  EXPECT_THAT(error_of([] {
                radius_search(d({4, 3}), d({5, 3}), -1, 1);
              }),
              HasSubstr("expected radius >= 0"));
  EXPECT_THAT(error_of([] { farthest_points(d({4, 3}), 5); }), HasSubstr("1 <= count <= N"));
}

TEST(PointsTest, InterpolationIsExactAtThePoints) {
  torch::manual_seed(5);
  const Tensor points = d({30, 3});
  const Tensor features = d({30, 4});
  EXPECT_TRUE(
      interpolate_points(points, features, points, 3, 1e-14).allclose(features, 1e-8, 1e-8));
}

TEST(PointsTest, FarthestPointsOfALine) {
  const Tensor line = torch::arange(9).to(at::kDouble).unsqueeze(1);
  EXPECT_TRUE(farthest_points(line, 4).equal(torch::tensor({0, 8, 4, 2})));
}

TEST(PointsTest, DistancesHaveTheGradientOfTheNorm) {
  torch::manual_seed(6);
  const Tensor points = d({9, 3}).requires_grad_();
  const Tensor queries = d({4, 3}).requires_grad_();
  const auto [indices, distances] = knn(points, queries, 1);
  distances.sum().backward();
  const Tensor offset = queries - points.index_select(0, indices.squeeze(1));
  EXPECT_TRUE(queries.grad().allclose(offset / offset.norm(2, {1}, true), 1e-12, 1e-12));
  EXPECT_NEAR((points.grad().sum(0) + queries.grad().sum(0)).abs().max().item<double>(), 0, 1e-12);
}

}  // namespace
}  // namespace shard
