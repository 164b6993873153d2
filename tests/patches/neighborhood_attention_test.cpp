// SPDX-License-Identifier: Apache-2.0
// Neighbourhood attention on plain tensors against dense attention under a mask that is made by the
// definition, one query and one key at a time; and what it sends when it is cut.
#include <gtest/gtest.h>
#include <shard/neighborhood_attention.h>
#include <shard/shard.h>
#include <torch/torch.h>

#include "support/rank_errors.h"

namespace shard::testing {
namespace {

using at::Tensor;
using List = std::vector<int64_t>;

struct Case {
  std::string name;
  List points, kernel, dilation;
  std::vector<bool> is_causal;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// Whether `query` has `key` as a neighbour along a dim, as NATTEN's documentation says it: among
/// the points of the same remainder, a window of `kernel` points around the query that is shifted
/// until it lies within them.
bool is_neighbor(int64_t query, int64_t key, int64_t length, int64_t kernel, int64_t dilation,
                 bool is_causal) {
  if (query % dilation != key % dilation) return false;
  if (is_causal) return key <= query && query - key < kernel * dilation;
  List window;
  for (int64_t i = query - kernel / 2 * dilation; std::ssize(window) < kernel; i += dilation) {
    window.push_back(i);
  }
  while (window.front() < 0) {
    for (auto& i : window) i += dilation;
  }
  while (window.back() >= length) {
    for (auto& i : window) i -= dilation;
  }
  return std::find(window.begin(), window.end(), key) != window.end();
}

/// (points, points) over all dims flattened.
Tensor dense_mask(const Case& c) {
  Tensor mask = torch::ones({1, 1}, at::kBool);
  for (size_t d = 0; d < c.points.size(); ++d) {
    const int64_t n = c.points[d];
    Tensor along = torch::zeros({n, n}, at::kBool);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        along[i][j] = is_neighbor(i, j, n, c.kernel[d], c.dilation[d], c.is_causal[d]);
      }
    }
    mask =
        mask.unsqueeze(1).unsqueeze(3).logical_and(along.unsqueeze(0).unsqueeze(2)).flatten(2, 3);
    mask = mask.flatten(0, 1);
  }
  return mask;
}

Tensor dense_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
  const auto rows = [](const Tensor& t) { return t.flatten(1, -3).transpose(1, 2); };
  const Tensor scores = torch::matmul(rows(q), rows(k).transpose(-2, -1)) /
                        std::sqrt(static_cast<double>(q.size(-1)));
  const Tensor weights = torch::softmax(scores.masked_fill(mask.logical_not(), -INFINITY), -1);
  return torch::matmul(weights, rows(v)).transpose(1, 2).reshape(v.sizes());
}

class PlainNeighborhood : public ::testing::TestWithParam<Case> {};

TEST_P(PlainNeighborhood, EqualsDenseMaskedAttentionWithAllGradientsTwice) {
  const Case& c = GetParam();
  torch::manual_seed(8);
  List sizes{2};
  sizes.insert(sizes.end(), c.points.begin(), c.points.end());
  sizes.insert(sizes.end(), {2, 3});
  std::vector<Tensor> qkv;
  for (int i = 0; i < 3; ++i) {
    qkv.push_back(torch::randn(sizes, at::dtype(at::kDouble).requires_grad(true)));
  }
  const Tensor mask = dense_mask(c);
  const Tensor want = dense_attention(qkv[0], qkv[1], qkv[2], mask);
  const Tensor got =
      neighborhood_attention(qkv[0], qkv[1], qkv[2], c.kernel, c.dilation, c.is_causal);
  EXPECT_TRUE(torch::allclose(got, want, 1e-10, 1e-12));
  const Tensor weights = torch::randn_like(want);
  const auto gradients = [&](const Tensor& y) {
    auto first = torch::autograd::grad({(y * weights).sum()}, qkv, {}, true, true);
    Tensor penalty = torch::zeros({}, at::kDouble);
    for (const auto& g : first) penalty = penalty + g.pow(2).sum();
    const auto second = torch::autograd::grad({penalty}, qkv);
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  const auto wanted = gradients(want);
  const auto found = gradients(got);
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(torch::allclose(found[i], wanted[i], 1e-8, 1e-10)) << "gradient " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Grids, PlainNeighborhood,
    ::testing::Values(Case{"line", {11}, {3}, {1}, {false}},
                      Case{"line_even", {11}, {4}, {1}, {false}},
                      Case{"line_dilated", {13}, {3}, {3}, {false}},
                      Case{"line_even_dilated", {13}, {4}, {2}, {false}},
                      Case{"line_causal", {11}, {4}, {1}, {true}},
                      Case{"line_causal_dilated", {11}, {3}, {2}, {true}},
                      Case{"line_whole", {7}, {7}, {1}, {false}},
                      Case{"line_of_several_tiles", {75}, {5}, {2}, {false}},
                      Case{"plane", {6, 7}, {3, 3}, {1, 1}, {false, false}},
                      Case{"plane_mixed", {7, 9}, {2, 3}, {3, 2}, {true, false}},
                      Case{"volume", {4, 5, 6}, {3, 2, 3}, {1, 2, 1}, {false, false, true}}),
    [](const auto& info) { return info.param.name; });

// PEERS test table: na1d, na2d, na3d with every sharded dim.
TEST(NeighborhoodAttention, SendsOnlyTheHalo) {
  run_ranks(4, [](World& world) {
    for (const int64_t dilation : {1, 2}) {
      std::vector<Tensor> qkv;
      for (int i = 0; i < 3; ++i) {
        const Tensor whole = torch::randn({1, 64, 6, 2, 8});
        qkv.push_back(scatter_tensor(whole, 0, world.mesh(), {Shard(1)}).set_requires_grad(true));
      }
      const int64_t row = 2 * 6 * 2 * 8 * int64_t{sizeof(float)};  // of a key and a value
      const int64_t sides = world.rank() == 0 || world.rank() == 3 ? 1 : 2;
      const CommCounter forward;
      const Tensor y = neighborhood_attention(qkv[0], qkv[1], qkv[2], {5, 3}, {dilation, 1});
      EXPECT_EQ(forward.calls(), 1);
      EXPECT_EQ(forward.bytes(), sides * 2 * dilation * row);
      const CommCounter backward;
      torch::autograd::grad({y}, qkv, {torch::ones_like(y)});
      EXPECT_EQ(backward.calls(), 1);
      EXPECT_EQ(backward.bytes(), sides * 2 * dilation * row);
    }
  });
}

TEST(NeighborhoodAttention, RefusesOnAllRanksAlike) {
  const auto expect_refused = [](const char* text, List kernel, List dilation, List key) {
    expect_same_error<SpecMismatch>(2, text, [=](const DeviceMesh& mesh) {
      const Tensor q = scatter_tensor(torch::randn({1, 9, 2, 4}), 0, mesh, {Shard(1)});
      return [=] { neighborhood_attention(q, torch::randn(key), q, kernel, dilation); };
    });
  };
  expect_refused("kernel_size 5 and dilation 2 along 9 points", {5}, {2}, {1, 9, 2, 4});
  expect_refused("kernel_size 0", {0}, {1}, {1, 9, 2, 4});
  expect_refused("kernel_size: got 2 values", {3, 3}, {1}, {1, 9, 2, 4});
  expect_refused("1 to 3 dims of points", {3}, {1}, {1, 8, 2, 4});
}

}  // namespace
}  // namespace shard::testing
