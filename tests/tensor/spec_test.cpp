// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/spec.h>

#include <numeric>
#include <sstream>

namespace shard {
namespace {

std::shared_ptr<const MeshLayout> ranks(int n) {
  auto layout = std::make_shared<MeshLayout>();
  layout->dims = {{"domain", n}};
  layout->world_ranks.resize(static_cast<size_t>(n));
  std::iota(layout->world_ranks.begin(), layout->world_ranks.end(), 0);
  return layout;
}

TEST(Partitions, ChunkRuleFillsFromTheFront) {
  EXPECT_EQ(chunk_partition(5, 4), (Partition{2, 2, 1, 0}));
  EXPECT_EQ(chunk_partition(9, 8), (Partition{2, 2, 2, 2, 1, 0, 0, 0}));
  EXPECT_EQ(chunk_partition(0, 2), (Partition{0, 0}));
}

TEST(Partitions, EvenRuleDiffersByAtMostOne) {
  EXPECT_EQ(even_partition(5, 4), (Partition{2, 1, 1, 1}));
  EXPECT_EQ(even_partition(2, 3), (Partition{1, 1, 0}));
}

TEST(Specs, KnowEveryShardsShapeAndOffset) {
  const auto spec = ShardTensorSpec::make(ranks(3), Shard(-1), {4, 7}, {5, 0, 2});
  EXPECT_EQ(spec->shard_dim(), 1);
  EXPECT_EQ(spec->local_shape(0), (Shape{4, 5}));
  EXPECT_EQ(spec->local_shape(1), (Shape{4, 0}));
  EXPECT_EQ(spec->offset(2), 5);
}

TEST(Specs, TileTheGlobalDimOnce) {
  for (int n = 0; n < 12; ++n) {
    for (int p = 1; p <= 5; ++p) {
      const auto spec = ShardTensorSpec::make(ranks(p), Shard(0), {n});
      int64_t next = 0;
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(spec->offset(r), next);
        next += spec->local_size(r);
      }
      EXPECT_EQ(next, n);
    }
  }
}

TEST(Specs, RefusePiecesThatDoNotFit) {
  EXPECT_THROW(ShardTensorSpec::make(ranks(2), Shard(0), {4}, {1, 2}), SpecMismatch);
  EXPECT_THROW(ShardTensorSpec::make(ranks(2), Shard(0), {4}, {5, -1}), SpecMismatch);
  EXPECT_THROW(ShardTensorSpec::make(ranks(2), Shard(0), {4}, {4}), SpecMismatch);
  EXPECT_THROW(ShardTensorSpec::make(ranks(2), Shard(1), {4}), SpecMismatch);
  EXPECT_THROW(ShardTensorSpec::make(ranks(2), Shard(0), {}), SpecMismatch);
}

TEST(Specs, CompareByValue) {
  const auto a = ShardTensorSpec::make(ranks(2), Shard(0), {4});
  const auto b = ShardTensorSpec::make(ranks(2), Shard(0), {4}, {2, 2});
  const auto c = ShardTensorSpec::make(ranks(2), Shard(0), {4}, {3, 1});
  EXPECT_TRUE(same(a, b));
  EXPECT_FALSE(same(a, c));
  EXPECT_FALSE(same(a, a->replicated()));
}

TEST(Specs, PrintPlacementShapeAndPieces) {
  std::ostringstream out;
  out << *ShardTensorSpec::make(ranks(2), Shard(0), {4, 3}, {3, 1});
  EXPECT_NE(out.str().find("Shard(0) of [4, 3] in pieces [3, 1]"), std::string::npos) << out.str();
}

}  // namespace
}  // namespace shard
