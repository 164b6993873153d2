// SPDX-License-Identifier: Apache-2.0
// What --verify calls plain LibTorch is plain: an op on a ShardTensor does not go unnoticed.
#include <global_field/plain_op_watch.h>
#include <gmock/gmock.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <torch/types.h>

#include "io/fixtures/temporary_folder.h"

namespace global_field {
namespace {

using shard::io::testing::error_of;
using ::testing::HasSubstr;
using torch::Tensor;

std::string complaint(const PlainOpWatch& watch) {
  return error_of<shard::Error>([&] { watch.require_plain(); });
}

Tensor sharded_ones(const shard::World& world) {
  return shard::from_local(torch::ones({2, 3}), world.mesh(), {shard::Shard(0)});
}

TEST(PlainOpWatch, AcceptsPlainTensorsForwardAndBackward) {
  shard::run_ranks(2, [](shard::World& world) {
    const Tensor sharded = sharded_ones(world);  // one that no op touches does no harm
    const Tensor x = torch::ones({2, 3}).requires_grad_();
    const PlainOpWatch watch;
    torch::cat({x, x * 2}).sum().backward();
    EXPECT_NO_THROW(watch.require_plain());
  });
}

TEST(PlainOpWatch, RefusesAnOpOnAShardTensor) {
  shard::run_ranks(2, [](shard::World& world) {
    const Tensor x = sharded_ones(world);
    const PlainOpWatch watch;
    const Tensor y = x + 1;
    EXPECT_THAT(complaint(watch), HasSubstr("the plain run is not plain: aten::"));
  });
}

TEST(PlainOpWatch, RefusesAShardTensorInAListOfTensors) {
  shard::run_ranks(2, [](shard::World& world) {
    const Tensor x = sharded_ones(world);
    const PlainOpWatch watch;
    const Tensor y = torch::cat({x, x}, 1);
    EXPECT_THAT(complaint(watch), HasSubstr("met a ShardTensor"));
  });
}

TEST(PlainOpWatch, RefusesABackwardThroughAShardTensor) {
  shard::run_ranks(2, [](shard::World& world) {
    const Tensor x = sharded_ones(world).requires_grad_();
    const Tensor loss = x.square().sum();
    const PlainOpWatch watch;
    loss.backward();
    EXPECT_THAT(complaint(watch), HasSubstr("met a ShardTensor"));
  });
}

TEST(PlainOpWatch, RefusesToVouchForNothing) {
  const PlainOpWatch watch;
  EXPECT_THAT(complaint(watch), HasSubstr("called no op"));
}

}  // namespace
}  // namespace global_field
