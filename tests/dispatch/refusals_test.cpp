// SPDX-License-Identifier: Apache-2.0
// What is not supported is refused by a typed error that names op, placements and the way out, the
// same on every rank; afterwards the runtime works on.
#include <gtest/gtest.h>
#include <shard/patch.h>
#include <shard/shard.h>
#include <torch/types.h>

#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;

template <class E>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

void expect_mentions(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
}

Tensor rows(World& world) {
  return scatter_tensor(torch::ones({6, 4}), 0, world.mesh(), {Shard(0)}, {4, 2});
}

TEST(Refusals, AnOpWithoutRuleNamesItselfThePlacementsAndTheWaysOut) {
  run_ranks(2, [](World& world) {
    const auto x = rows(world);
    expect_mentions(
        message_of<MissingShardPatch>([&] { at::poisson(x); }),
        {"aten::poisson", "Shard(0) of [6, 4] in pieces [4, 2]", "SHARD_PATCH", "Redistribute"});
    EXPECT_EQ((x + 1).sum().item<double>(), 48);
  });
}

TEST(Refusals, APlainTensorOfTheLocalShapeGetsTheHint) {
  run_ranks(2, [](World& world) {
    const auto x = rows(world);
    const auto local = torch::ones({world.rank() == 0 ? 4 : 2, 4});
    expect_mentions(message_of<SpecMismatch>([&] { x + local; }), {"from_local", "local shape"});
  });
}

TEST(Refusals, StorageAndStridesOfAShardAreNotForUserCode) {
  run_ranks(2, [](World& world) {
    auto x = rows(world);
    expect_mentions(message_of<MissingShardPatch>([&] {
                      x.as_strided({2, 2}, {1, 1});
                    }),
                    {"as_strided"});
    expect_mentions(message_of<MissingShardPatch>([&] { x.resize_({3, 4}); }), {"resize_"});
    expect_mentions(message_of<MissingShardPatch>([&] { x.set_(torch::ones({2})); }), {"set_"});
  });
}

TEST(Refusals, TwoMeshesInOneOp) {
  run_ranks(4, [](World& world) {
    const auto mesh = world.mesh({{"a", 2}, {"b", 2}});
    const auto x = from_local(torch::ones({2}), mesh["a"], {Shard(0)});
    const auto y = from_local(torch::ones({2}), mesh["b"], {Shard(0)});
    expect_mentions(message_of<SpecMismatch>([&] { x + y; }), {"aten::add.Tensor", "one mesh"});
  });
}

TEST(Refusals, PlainAndShardedTensorsToWriteInOneCall) {
  const std::vector<std::string> parts{"plain tensors and ShardTensors to write in one call",
                                       "Call the op once for each"};
  run_ranks(2, [&](World& world) {
    const auto x = rows(world);
    auto values = torch::zeros({6});
    auto indices = torch::empty({6}, at::kLong);
    auto sharded_indices = scatter_tensor(indices, 0, world.mesh(), {Shard(0)}, {4, 2});
    expect_mentions(message_of<SpecMismatch>([&] { at::max_out(values, sharded_indices, x, 1); }),
                    parts);
    EXPECT_TRUE(at::equal(values, torch::zeros({6})));  // neither is written
    at::max_out(values, indices, x, 1);                 // one kind: gathered
    EXPECT_TRUE(at::equal(values, torch::ones({6})));
  });
}

TEST(Refusals, FunctionPatchesOfViewOps) {
  PatchRegistrar registrar("test");
  expect_mentions(message_of<ConfigError>(
                      [&] { registrar.function<at::_ops::t>(+[](const Tensor& x) { return x; }); }),
                  {"view op aten::t", "rule"});
}

TEST(Promotion, CanBeDisabled) {
  run_ranks(1, [](World& world) {
    const auto x = scatter_tensor(torch::ones({6, 4}), 0, world.mesh(), {Shard(0)});
    set_tensor_promotion_mode(TensorPromotionMode::Disabled);
    EXPECT_THROW(x + torch::ones({4}), SpecMismatch);
    EXPECT_NO_THROW(x + 1);
    set_tensor_promotion_mode(TensorPromotionMode::Silent);
    EXPECT_NO_THROW(x + torch::ones({4}));
  });
}

TEST(ValuesForTheHost, AreGlobalOnEveryRank) {
  run_ranks(3, [](World& world) {
    const auto x =
        scatter_tensor(torch::arange(6, at::kFloat), 0, world.mesh(), {Shard(0)}, {1, 3, 2});
    auto y = x.clone();
    EXPECT_TRUE(at::equal(x, y));
    EXPECT_TRUE(at::allclose(x, y));
    EXPECT_EQ(x.max().item<double>(), 5);
    EXPECT_EQ(x.sum().item<double>(), 15);
    EXPECT_TRUE((x.sum() > 14).item<bool>());
    EXPECT_TRUE(x.sum().is_nonzero());
    // A difference in one rank's part is every rank's answer.
    const auto local = ShardTensor(y).local();
    if (world.rank() == 1) const_cast<Tensor&>(local).add_(1);
    EXPECT_FALSE(at::equal(x, y));
    EXPECT_FALSE(at::allclose(x, y));
  });
}

TEST(ValuesForTheHost, OfPartialTensorsAreReduced) {
  run_ranks(3, [](World& world) {
    const auto x = from_local(torch::full({}, 1.0), world.mesh(), {Partial()});
    EXPECT_EQ(x.item<double>(), 3);
  });
}

}  // namespace
}  // namespace shard::testing
