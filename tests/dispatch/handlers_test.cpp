// SPDX-License-Identifier: Apache-2.0
// Handlers that a program registers while it runs: for ops without a patch, in place of a built-in
// one, for ops of its own, before launch and inside it.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <shard/handlers.h>
#include <shard/shard.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <thread>

#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor rows(World& world) {
  return scatter_tensor(torch::arange(24.).view({6, 4}), 0, world.mesh(), {Shard(0)});
}

/// Differs from every op's own result, so that it shows who ran.
Tensor seven_times(const Tensor& x) { return from_local(to_local(x) * 7, mesh_of(x), spec_of(x)); }
Tensor eight_times(const Tensor& x) { return from_local(to_local(x) * 8, mesh_of(x), spec_of(x)); }

double ratio(World& world, const std::function<Tensor(const Tensor&)>& op) {
  const Tensor x = rows(world);
  return (ShardTensor(op(x)).full().sum() / ShardTensor(x).full().sum()).item<double>();
}

// ---- who runs

TEST(Handlers, ReplaceABuiltInRuleUntilTheyAreRemoved) {
  run_ranks(2, [&](World& world) {
    const Tensor before = ShardTensor(rows(world).erf()).full();
    {
      const auto registration = register_function_handler<at::_ops::erf>(seven_times);
      EXPECT_EQ(ratio(world, [](const Tensor& x) { return x.erf(); }), 7);
      EXPECT_EQ(ratio(world, [](const Tensor& x) { return x.abs(); }),
                1);  // others are not touched
    }
    EXPECT_TRUE(at::equal(ShardTensor(rows(world).erf()).full(), before));
  });
}

TEST(Handlers, ReplaceTypedPatchesAndHotKernels) {
  run_ranks(2, [&](World& world) {
    const auto softmax = [](const Tensor& x, int64_t, std::optional<at::ScalarType>) {
      return seven_times(x);
    };
    const auto a = register_function_handler<at::_ops::softmax_int>(+softmax);
    const auto b = register_function_handler<at::_ops::relu>(eight_times);
    EXPECT_EQ(ratio(world, [](const Tensor& x) { return x.softmax(0); }), 7);
    EXPECT_EQ(ratio(world, [](const Tensor& x) { return x.relu(); }), 8);
  });
}

TEST(Handlers, TheLastOneRunsAndItsRemovalRestoresTheOneBefore) {
  run_ranks(3, [](World& world) {
    auto first = register_function_handler<at::_ops::relu>(seven_times);
    auto second = register_function_handler<at::_ops::relu>(eight_times);
    const auto relu = [](const Tensor& x) { return x.relu(); };
    EXPECT_EQ(ratio(world, relu), 8);
    second.remove();
    EXPECT_EQ(ratio(world, relu), 7);
    second = register_function_handler<at::_ops::relu>(eight_times);
    first.remove();  // not the one that runs
    EXPECT_EQ(ratio(world, relu), 8);
    second.remove();
    EXPECT_EQ(ratio(world, relu), 1);
  });
}

TEST(Handlers, RegisteredBeforeLaunchHoldOnAllRanks) {
  const auto registration = register_function_handler<at::_ops::relu>(seven_times);
  run_ranks(3, [](World& world) {
    EXPECT_EQ(ratio(world, [](const Tensor& x) { return x.relu(); }), 7);
    const auto own = register_function_handler<at::_ops::relu>(eight_times);
    EXPECT_EQ(ratio(world, [](const Tensor& x) { return x.relu(); }), 8);
  });
  run_ranks(1, [](World& world) {
    EXPECT_EQ(ratio(world, [](const Tensor& x) { return x.relu(); }), 7);
  });
}

/// A rank ahead of the others registers: calls that they still have to make are not changed.
TEST(Handlers, RegisteredInsideLaunchHoldFromThatPointOfTheRanksProgram) {
  run_ranks(2, [](World& world) {
    const auto relu = [](const Tensor& x) { return x.relu(); };
    Tensor x = rows(world);
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const Tensor before = relu(x);  // communicates nothing: rank 0 does not wait here
    const auto registration = register_function_handler<at::_ops::relu>(seven_times);
    EXPECT_TRUE(at::equal(raw_local(before), raw_local(x)));
    EXPECT_EQ(ratio(world, relu), 7);
  });
}

TEST(Handlers, MayOutliveTheirRank) {
  HandlerRegistration kept;
  run_ranks(1, [&](World&) { kept = register_function_handler<at::_ops::relu>(seven_times); });
  run_ranks(1, [](World& world) {
    EXPECT_EQ(ratio(world, [](const Tensor& x) { return x.relu(); }), 1);
  });
  kept.remove();
}

// ---- ops without a patch

Tensor renorm(const Tensor& x, const at::Scalar& p, int64_t dim, const at::Scalar& maxnorm) {
  const auto& spec = spec_of(x);
  const Tensor whole = redistribute(x, spec->with(Shard(dim), x.sizes()));
  return from_local(at::renorm(to_local(whole), p, 0, maxnorm), mesh_of(x), spec_of(whole));
}

TEST(Handlers, CoverAnOpThatTheLibraryDoesNotKnow) {
  const auto registration = register_function_handler<at::_ops::renorm>(renorm);
  torch::manual_seed(1);
  Check check;
  check.grid = Check::Grid::OneDim;
  expect_sharded_equals_plain([](const Tensors& t) { return at::renorm(t[0], 2, 0, 1); },
                              {sharded(torch::randn({7, 4}, at::kDouble), 0)}, check);
}

TEST(Handlers, OfTheDispatchLevelAreDifferentiatedByLibTorch) {
  const auto rule = register_dispatch_handler("aten::angle", pointwise());
  expect_sharded_equals_plain([](const Tensors& t) { return at::angle(t[0]); },
                              {sharded(torch::randn({7, 4}, at::kDouble), 0)}, {});
  run_ranks(2, [](World& world) {
    const auto typed = register_dispatch_handler<at::_ops::sin>(seven_times);
    Tensor x = rows(world).requires_grad_();
    const Tensor y = x.sin();
    EXPECT_TRUE(at::allclose(ShardTensor(y.detach()).full(), ShardTensor(x.detach()).full() * 7));
    y.sum().backward();  // the formula of sin: cos
    EXPECT_TRUE(at::allclose(ShardTensor(x.grad()).full(), ShardTensor(x.detach()).full().cos()));
  });
}

// ---- ops of the program's own

Tensor halve(const Tensor& x, int64_t times) {
  return x / static_cast<double>(int64_t{1} << times);
}
Tensor halve_shards(const Tensor& x, int64_t times) {
  return from_local(halve(to_local(x), times), mesh_of(x), spec_of(x));
}

Tensor call_halve(const Tensor& x, int64_t times) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("shard_test::halve", "")
      .typed<Tensor(const Tensor&, int64_t)>()
      .call(x, times);
}

TEST(Handlers, ByNameAlsoForAnOpThatIsRegisteredLater) {
  const auto registration = register_named_function_handler("shard_test::halve", halve_shards);
  torch::Library library(torch::Library::DEF, "shard_test", std::nullopt, __FILE__, __LINE__);
  library.def("halve(Tensor x, int times) -> Tensor");
  library.impl("halve", torch::dispatch(c10::DispatchKey::CPU, halve));
  expect_sharded_equals_plain([](const Tensors& t) { return t[0] * call_halve(t[0].detach(), 2); },
                              {sharded(torch::randn({7, 4}, at::kDouble), 0)}, {});
}

// ---- a part of the cases

Tensor only_negative(const Tensor& x, const std::optional<at::Scalar>& low,
                     const std::optional<at::Scalar>& high) {
  if (low && low->toDouble() < 0) return seven_times(x);
  return next_handler<at::_ops::clamp>(x, low, high);
}

TEST(Handlers, HandOnWhatTheyDoNotCover) {
  run_ranks(2, [](World& world) {
    const auto below = register_function_handler<at::_ops::clamp>(
        +[](const Tensor& x, const std::optional<at::Scalar>&, const std::optional<at::Scalar>&) {
          return eight_times(x);
        });
    {
      const auto above = register_function_handler<at::_ops::clamp>(only_negative);
      EXPECT_EQ(ratio(world, [](const Tensor& x) { return x.clamp(-1, 5); }), 7);
      EXPECT_EQ(ratio(world, [](const Tensor& x) { return x.clamp(1, 5); }), 8);
    }
  });
  run_ranks(2, [](World& world) {
    const auto above = register_function_handler<at::_ops::clamp>(only_negative);
    const Tensor x = rows(world);
    EXPECT_TRUE(at::equal(ShardTensor(x.clamp(1, 5)).full(), ShardTensor(x).full().clamp(1, 5)));
    EXPECT_EQ(ratio(world, [](const Tensor& t) { return t.clamp(-1, 5); }), 7);
  });
  EXPECT_THROW(next_handler<at::_ops::relu>(torch::ones(2)), ConfigError);
}

TEST(Handlers, AutocastRunsFirst) {
  run_ranks(2, [](World& world) {
    const auto registration =
        register_function_handler<at::_ops::mm>(+[](const Tensor& a, const Tensor& b) {
          return from_local(at::mm(to_local(a), b), mesh_of(a),
                            spec_of(a)->with_shape({a.size(0), b.size(1)}));
        });
    const Tensor x = rows(world);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Tensor y = x.mm(torch::ones({4, 2}));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  });
}

// ---- mistakes

TEST(Handlers, OfTheWrongKindAreRefused) {
  const auto view = [](const Tensor& x, at::IntArrayRef) { return x; };
  EXPECT_THROW((void)register_function_handler<at::_ops::view>(+view), ConfigError);
  EXPECT_THROW((void)register_named_function_handler("relu", seven_times), ConfigError);
  EXPECT_THROW((void)register_named_function_handler("aten::clamp", seven_times), ConfigError);
  run_ranks(2, [](World& world) { EXPECT_EQ(ratio(world, [](auto& x) { return x.relu(); }), 1); });
}

TEST(Handlers, ThatThrowLeaveTheRuntimeWorking) {
  run_ranks(2, [](World& world) {
    {
      const auto registration = register_function_handler<at::_ops::relu>(
          +[](const Tensor&) -> Tensor { throw std::runtime_error("mine"); });
      EXPECT_THROW(rows(world).relu(), std::runtime_error);
    }
    EXPECT_EQ(ratio(world, [](const Tensor& x) { return x.relu(); }), 1);
  });
}

TEST(Handlers, LibTorchPrintsNoWarning) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [](World& world) {
    for (int i = 0; i < 3; ++i) {
      const auto registration = register_function_handler<at::_ops::convolution>(
          +[](const Tensor& x, const Tensor&, const std::optional<Tensor>&, at::IntArrayRef,
              at::IntArrayRef, at::IntArrayRef, bool, at::IntArrayRef, int64_t) { return x; });
      const Tensor x = scatter_tensor(torch::ones({1, 1, 8, 8}), 0, world.mesh(), {Shard(2)});
      EXPECT_EQ(at::conv2d(x, torch::ones({1, 1, 3, 3})).size(2), 8);
    }
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace shard::testing
