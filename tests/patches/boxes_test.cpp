// SPDX-License-Identifier: Apache-2.0
// Windows over several cut dims: one exchange brings the whole box, corners included, and one takes
// its gradient back, whatever the mesh.
#include <gtest/gtest.h>
#include <shard/comm_counter.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <shard/window_patch.h>
#include <support/sharded_check.h>
#include <torch/autograd.h>
#include <torch/types.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
/// Of the input and the weights.
using Op = std::function<Tensor(const Tensor&, const Tensors&)>;

/// How a field of 8 rows, 6 columns (and, of volumes, 6 layers before them) lies.
struct Lie {
  std::vector<MeshDim> dims;
  Placements placements;
  std::vector<Partition> partitions;
};

const Lie kRowsAndColumns{{{"rows", 2}, {"columns", 2}}, {Shard(2), Shard(3)}, {{5, 3}, {2, 4}}};
const Lie kColumnsAndRows{{{"columns", 2}, {"rows", 2}}, {Shard(3), Shard(2)}, {{1, 5}, {8, 0}}};
const Lie kLayersAndColumns{{{"a", 2}, {"b", 2}}, {Shard(2), Shard(4)}, {{2, 4}, {5, 1}}};
const Lie kLayersAndColumnsOfThree{
    {{"a", 2}, {"b", 1}, {"c", 2}}, {Shard(2), Shard(3), Shard(4)}, {{4, 2}, {8}, {3, 3}}};
const Lie kRowsAndColumnsOfThree{
    {{"a", 1}, {"b", 2}, {"c", 2}}, {Shard(2), Shard(3), Shard(4)}, {{6}, {1, 7}, {4, 2}}};

Tensor field() { return torch::randn({2, 3, 8, 6}, torch::kDouble); }
Tensor volume() { return torch::randn({1, 2, 6, 8, 6}, torch::kDouble); }

/// `x` and the weights require grad; the result's gradients, and those of a gradient penalty.
Tensors gradients(const Tensor& x, const Tensors& weights, const Op& op) {
  Tensors inputs{x};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  const Tensor loss = op(x, weights).square().sum();
  Tensors first = torch::autograd::grad({loss}, inputs, {}, true, true);
  const auto second =
      torch::autograd::grad({first[0].square().sum()}, inputs, {}, false, false, true);
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Two calls, forward and backward: one exchange each, and no other message except one for the
/// gradients of weights.
void expect_one_exchange(const Tensor& x, const Tensors& weights, const Op& op) {
  const CommCounter forward;
  const Tensor y = op(x, weights);
  EXPECT_EQ(forward.calls("exchange"), 1) << forward.table();
  EXPECT_EQ(forward.calls(), 1) << forward.table();
  Tensors inputs{x};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  const Tensor cotangent = torch::ones_like(y);
  const CommCounter backward;
  torch::autograd::grad({y}, inputs, {cotangent});
  EXPECT_EQ(backward.calls("exchange"), 1) << backward.table();
  EXPECT_EQ(backward.calls(), weights.empty() ? 1 : 2) << backward.table();
}

void expect_box(const Lie& lie, const Tensor& whole, const Tensors& weights, const Op& op) {
  const auto leaf = [](const Tensor& t) { return t.detach().clone().requires_grad_(); };
  Tensors own;
  for (const Tensor& weight : weights) own.push_back(leaf(weight));
  const Tensor plain = leaf(whole);
  const Tensor want = op(plain, own).detach();
  const Tensors want_gradients = gradients(plain, own, op);
  run_ranks(4, [&](World& world) {
    Tensors local;
    for (const Tensor& weight : weights) local.push_back(leaf(weight));
    const Tensor x = scatter_tensor(whole, 0, world.mesh(lie.dims), lie.placements, lie.partitions)
                         .requires_grad_();
    expect_one_exchange(x, local, op);
    EXPECT_LE(relative_error(ShardTensor(op(x, local).detach()).full(), want), 1e-12);
    const Tensors got = gradients(x, local, op);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].defined(), want_gradients[i].defined()) << "gradient " << i;
      if (!got[i].defined()) continue;
      const Tensor gradient =
          is_shard_tensor(got[i]) ? ShardTensor(got[i].detach()).full() : got[i];
      EXPECT_LE(relative_error(gradient, want_gradients[i]), 1e-12) << "gradient " << i;
    }
  });
}

void expect_boxes(const std::vector<Lie>& lies, const Tensor& whole, const Tensors& weights,
                  const Op& op) {
  for (const Lie& lie : lies) {
    SCOPED_TRACE(c10::str(lie.placements));
    expect_box(lie, whole, weights, op);
  }
}

const std::vector<Lie> kPlanes{kRowsAndColumns, kColumnsAndRows};
const std::vector<Lie> kVolumes{kLayersAndColumns, kLayersAndColumnsOfThree,
                                kRowsAndColumnsOfThree};

Tensors weights(at::IntArrayRef sizes) {
  return {torch::randn(sizes, torch::kDouble), torch::randn({sizes[0]}, torch::kDouble)};
}

void expect_convolutions() {
  expect_boxes(kPlanes, field(), weights({4, 3, 3, 3}), [](const Tensor& x, const Tensors& w) {
    return torch::conv2d(x, w[0], w[1], 1, 1);
  });
  expect_boxes(kPlanes, field(), weights({4, 3, 4, 5}), [](const Tensor& x, const Tensors& w) {
    return torch::conv2d(x, w[0], w[1], {2, 1}, {3, 2});
  });
  expect_boxes(kVolumes, volume(), weights({3, 2, 3, 3, 3}), [](const Tensor& x, const Tensors& w) {
    return torch::conv3d(x, w[0], w[1], 1, 1);
  });
}

TEST(OneExchange, OfConvolutions) { expect_convolutions(); }

/// As for large shards: what lies beyond the shard is added strip by strip.
TEST(OneExchange, OfConvolutionsByLinearity) {
  const int64_t before = concatenation_limit();
  set_concatenation_limit(0);
  expect_convolutions();
  const Lie even{{{"rows", 2}, {"columns", 2}}, {Shard(2), Shard(3)}, {{4, 4}, {3, 3}}};
  for (const int64_t padding : {0, 1, 2}) {
    expect_box(even, field(), weights({4, 3, 3, 3}), [=](const Tensor& x, const Tensors& w) {
      return torch::conv2d(x, w[0], w[1], 1, padding);
    });
  }
  set_concatenation_limit(before);
}

TEST(OneExchange, OfTransposedConvolutions) {
  expect_boxes(kPlanes, field(), weights({3, 3, 4, 3}), [](const Tensor& x, const Tensors& w) {
    return torch::conv_transpose2d(x, w[0], w[1], {2, 1}, 1, {1, 0});
  });
}

TEST(OneExchange, OfPooling) {
  expect_boxes(kPlanes, field(), {},
               [](const Tensor& x, const Tensors&) { return torch::max_pool2d(x, 3, 2, 1); });
  expect_boxes(kPlanes, field(), {}, [](const Tensor& x, const Tensors&) {
    return torch::avg_pool2d(x, 3, 1, 1, false, false);
  });
  expect_boxes(kVolumes, volume(), {},
               [](const Tensor& x, const Tensors&) { return torch::avg_pool3d(x, 3, 2, 1); });
}

TEST(OneExchange, OfInterpolation) {
  expect_boxes(kPlanes, field(), {}, [](const Tensor& x, const Tensors&) {
    return torch::upsample_bilinear2d(x, {16, 12}, false, 2., 2.);
  });
  expect_boxes(kPlanes, field(), {}, [](const Tensor& x, const Tensors&) {
    return torch::upsample_bilinear2d(x, {11, 5}, true);
  });
  expect_boxes(kPlanes, field(), {}, [](const Tensor& x, const Tensors&) {
    return torch::upsample_nearest2d(x, {13, 9});
  });
  expect_boxes(kPlanes, field(), {}, [](const Tensor& x, const Tensors&) {
    return torch::upsample_bicubic2d(x, {11, 7}, false);
  });
}

TEST(OneExchange, OfPadding) {
  for (const char* mode : {"circular", "reflect"}) {
    expect_boxes(kPlanes, field(), {}, [=](const Tensor& x, const Tensors&) {
      return torch::pad(x, {3, 2, 1, 4}, mode);
    });
  }
}

/// Indices count in the whole plane.
TEST(OneExchange, OfMaximaAndTheirPlaces) {
  const Tensor whole = field();
  const auto want = torch::max_pool2d_with_indices(whole, {3, 2}, 1, {1, 0}, {1, 2});
  for (const Lie& lie : kPlanes) {
    run_ranks(4, [&](World& world) {
      const Tensor x =
          scatter_tensor(whole, 0, world.mesh(lie.dims), lie.placements, lie.partitions);
      const CommCounter counter;
      const auto got = torch::max_pool2d_with_indices(x, {3, 2}, 1, {1, 0}, {1, 2});
      EXPECT_EQ(counter.calls(), 1) << counter.table();
      EXPECT_TRUE(torch::equal(ShardTensor(std::get<0>(got)).full(), std::get<0>(want)));
      EXPECT_TRUE(torch::equal(ShardTensor(std::get<1>(got)).full(), std::get<1>(want)));
    });
  }
}

/// A batch over one mesh dim, rows and columns over the others: no message between the replicas.
TEST(OneExchange, BesideACutBatch) {
  const Tensor whole = torch::randn({3, 3, 8, 6}, torch::kDouble);
  const Tensor w = torch::randn({2, 3, 3, 3}, torch::kDouble);
  const Tensor want = torch::conv2d(whole, w, {}, 1, 1);
  const std::vector<MeshDim> dims{{"a", 2}, {"b", 2}, {"c", 2}};
  const std::vector<Placements> ways{{Shard(0), Shard(2), Shard(3)},
                                     {Shard(2), Shard(0), Shard(3)},
                                     {Shard(3), Shard(2), Shard(0)}};
  run_ranks(8, [&](World& world) {
    for (const auto& way : ways) {
      std::vector<Partition> partitions;
      for (const auto& placement : way)
        partitions.push_back(placement.is_shard(0) ? Partition{3, 0} : Partition{});
      const Tensor x = scatter_tensor(whole, 0, world.mesh(dims), way, partitions);
      const CommCounter counter;
      const Tensor y = torch::conv2d(x, w, {}, 1, 1);
      EXPECT_EQ(counter.calls(), 1) << counter.table();
      EXPECT_LE(relative_error(ShardTensor(y).full(), want), 1e-12);
      EXPECT_EQ(ShardTensor(y).placements(), way);
    }
  });
}

/// Channels that one mesh dim cuts move alike at every place, however many rows the place has.
TEST(OneExchange, BesideCutChannels) {
  const Tensor whole = torch::randn({1, 4, 12, 6}, torch::kDouble);
  const Tensor w = torch::randn({2, 4, 3, 3}, torch::kDouble);
  run_ranks(4, [&](World& world) {
    const auto mesh = world.mesh({{"a", 2}, {"b", 2}});
    const Tensor x = scatter_tensor(whole, 0, mesh, {Shard(2), Shard(1)}, {{3, 9}, {1, 3}});
    const Tensor y = torch::conv2d(x, w, {}, 1, 1);
    EXPECT_LE(relative_error(ShardTensor(y).full(), torch::conv2d(whole, w, {}, 1, 1)), 1e-12);
    EXPECT_EQ(ShardTensor(y).placements(), (Placements{Shard(2), Shard(3)}));
  });
}

}  // namespace
}  // namespace shard::testing
