// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <torch/types.h>

#include <mutex>
#include <set>

namespace shard::testing {
namespace {

using ::testing::HasSubstr;

TEST(DeviceMesh, OfOneDimHoldsAllRanks) {
  run_ranks(3, [](World& world) {
    const DeviceMesh mesh = world.mesh();
    EXPECT_EQ(mesh.ndim(), 1);
    EXPECT_EQ(mesh.size(), 3);
    EXPECT_EQ(mesh.size("domain"), 3);
    EXPECT_EQ(mesh.rank(), world.rank());
    EXPECT_EQ(mesh.coordinate("domain"), world.rank());
    EXPECT_EQ(mesh.comm().name(), "domain");
  });
}

TEST(DeviceMesh, NumbersRanksRowMajor) {
  run_ranks(8, [](World& world) {
    const DeviceMesh mesh = world.mesh({{"a", 2}, {"b", -1}, {"c", 2}});
    EXPECT_EQ(mesh.size("b"), 2);
    EXPECT_EQ(mesh.coordinate("a"), world.rank() / 4);
    EXPECT_EQ(mesh.coordinate("b"), world.rank() / 2 % 2);
    EXPECT_EQ(mesh.coordinate("c"), world.rank() % 2);
    for (const char* dim : {"a", "b", "c"}) {
      EXPECT_EQ(mesh.comm(dim).rank(), mesh.coordinate(dim));
      EXPECT_EQ(mesh.comm(dim).size(), 2);
    }
  });
}

TEST(DeviceMesh, ConnectsRanksThatDifferAlongOneDim) {
  run_ranks(6, [](World& world) {
    const DeviceMesh mesh = world.mesh({{"ddp", 2}, {"domain", 3}});
    torch::Tensor sum = torch::tensor({world.rank()});
    mesh.comm("domain").all_reduce(sum);
    EXPECT_EQ(sum.item<int64_t>(), world.rank() < 3 ? 0 + 1 + 2 : 3 + 4 + 5);
    sum = torch::tensor({world.rank()});
    mesh.comm("ddp").all_reduce(sum);
    EXPECT_EQ(sum.item<int64_t>(), 2 * (world.rank() % 3) + 3);
  });
}

TEST(DeviceMesh, GivesSubMeshesWithoutCommunication) {
  run_ranks(4, [](World& world) {
    const DeviceMesh mesh = world.mesh({{"ddp", 2}, {"domain", 2}});
    const DeviceMesh domain = mesh["domain"];
    EXPECT_EQ(domain.ndim(), 1);
    EXPECT_EQ(domain.size(), 2);
    EXPECT_EQ(domain.rank(), world.rank() % 2);
    EXPECT_EQ(domain["domain"].layout_ref(), domain.layout_ref());
    const std::vector<int> expected{world.rank() / 2 * 2, world.rank() / 2 * 2 + 1};
    EXPECT_EQ(domain.layout().world_ranks, expected);
    EXPECT_EQ(domain.device(), c10::kCPU);
  });
}

TEST(DeviceMesh, SharesEqualLayoutsBetweenRanksAndMeshes) {
  std::mutex mutex;
  std::set<const MeshLayout*> layouts;
  std::vector<DeviceMesh> alive;
  run_ranks(3, [&](World& world) {
    const DeviceMesh first = world.mesh();
    const DeviceMesh second = world.mesh();
    const std::lock_guard lock(mutex);
    layouts.insert({first.layout_ref().get(), second.layout_ref().get()});
    alive.push_back(first);
    alive.push_back(second);
  });
  EXPECT_EQ(layouts.size(), 1u);
}

TEST(MeshLayout, ComparesByValue) {
  const MeshLayout layout{{{"a", 2}}, {0, 1}};
  EXPECT_EQ(layout, (MeshLayout{{{"a", 2}}, {0, 1}}));
  EXPECT_FALSE(layout == (MeshLayout{{{"b", 2}}, {0, 1}}));
  EXPECT_FALSE(layout == (MeshLayout{{{"a", 2}}, {2, 3}}));
}

std::string error_of(int ranks, std::vector<MeshDim> dims) {
  std::string text = "no error";
  run_ranks(ranks, [&](World& world) {
    try {
      world.mesh(dims);
    } catch (const ConfigError& error) {
      if (world.is_root()) text = error.what();
    }
  });
  return text;
}

TEST(DeviceMesh, RefusesShapesThatDoNotFit) {
  EXPECT_THAT(error_of(2, {{"ddp", 2}, {"domain", 3}}),
              HasSubstr("[mesh] shape ('ddp': 2, 'domain': 3): got 6 ranks; expected 2"));
  EXPECT_THAT(error_of(3, {{"ddp", 2}, {"domain", -1}}),
              HasSubstr("got 2 ranks beside the -1; expected a divisor of 3"));
  EXPECT_THAT(error_of(2, {{"ddp", -1}, {"domain", -1}}),
              HasSubstr("got -1 for 'ddp' and 'domain'"));
  EXPECT_THAT(error_of(2, {{"a", 0}}), HasSubstr("size of 'a': got 0"));
  EXPECT_THAT(error_of(2, {{"a", 2}, {"a", 1}}), HasSubstr("got 'a' twice"));
  EXPECT_THAT(error_of(2, {}), HasSubstr("dims: got none"));
  EXPECT_THAT(error_of(2, {{"", 2}}), HasSubstr("empty name"));
}

TEST(DeviceMesh, RefusesRanksThatDisagree) {
  run_ranks(2, [](World& world) {
    const std::vector<MeshDim> dims{{world.rank() == 0 ? "a" : "b", 2}};
    EXPECT_THROW(world.mesh(dims), ConfigError);
  });
}

TEST(DeviceMesh, NamesItsDimsWhenAskedForAnother) {
  run_ranks(2, [](World& world) {
    const DeviceMesh mesh = world.mesh({{"ddp", 1}, {"domain", 2}});
    try {
      mesh.comm("batch");
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("[mesh] dim: got 'batch'; expected one of ('ddp': 1, 'domain': 2)"));
    }
    EXPECT_EQ(mesh.comm().size(), 2);
  });
}

}  // namespace
}  // namespace shard::testing
