// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <shard/launch.h>
#include <shard/pieces.h>
#include <shard/tensor.h>
#include <torch/types.h>

namespace shard::testing {
namespace {

using at::Tensor;

void expect_narrowed(const Tensor& tensor, int64_t dim, const Partition& partition) {
  const auto pieces = pieces_of(tensor, dim, partition);
  ASSERT_EQ(pieces.size(), partition.size());
  int64_t begin = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Tensor expected = tensor.narrow(dim, begin, partition[i]);
    EXPECT_EQ(pieces[i].strides(), expected.strides());
    EXPECT_EQ(pieces[i].storage_offset(), expected.storage_offset());
    EXPECT_TRUE(torch::equal(pieces[i], expected));
    begin += partition[i];
  }
}

TEST(Pieces, AreViewsLikeThoseOfNarrow) {
  const Tensor x = torch::arange(2. * 7 * 5, torch::kDouble).view({2, 7, 5});
  expect_narrowed(x, 1, {3, 0, 4});
  expect_narrowed(x.transpose(0, 2).slice(0, 1), 1, {0, 2, 5});
  expect_narrowed(torch::complex(x, x).conj(), 2, {1, 4});
  expect_narrowed(torch::empty({0, 3}), 0, {0, 0});
}

TEST(Pieces, ShareMemoryAndVersionWithTheTensor) {
  const Tensor x = torch::zeros({4, 3});
  const auto pieces = pieces_of(x, 0, {1, 3});
  const auto version = x._version();
  pieces[1].fill_(2);
  EXPECT_TRUE(torch::equal(x.select(1, 0), torch::tensor({0.f, 2.f, 2.f, 2.f})));
  EXPECT_GT(x._version(), version);
}

TEST(Pieces, OfAShardTensorAreShardTensors) {
  run_ranks(2, [](World& world) {
    const Tensor whole = torch::arange(24.).view({6, 4});
    const Tensor x = scatter_tensor(whole, 0, world.mesh(), {Shard(1)});
    const auto pieces = pieces_of(x, 0, {2, 4});
    EXPECT_TRUE(torch::equal(ShardTensor(pieces[1]).full(), whole.narrow(0, 2, 4)));
  });
}

}  // namespace
}  // namespace shard::testing
