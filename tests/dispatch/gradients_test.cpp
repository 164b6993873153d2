// SPDX-License-Identifier: Apache-2.0
// The autograd API on ShardTensors: placements of gradients, hooks, grad(), optimizers.
#include <c10/core/AutogradState.h>
#include <gtest/gtest.h>
#include <shard/primitives.h>
#include <shard/shard.h>
#include <torch/torch.h>

#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;

const Tensor& sample() {
  static const Tensor value = torch::arange(24, torch::kFloat).view({6, 4}).sin();
  return value;
}
Tensor rows(World& world, bool requires_grad = true) {
  return scatter_tensor(sample(), 0, world.mesh(), {Shard(0)}).requires_grad_(requires_grad);
}
Tensor full(const Tensor& t) { return is_shard_tensor(t) ? ShardTensor(t).full() : t; }

TEST(LeafGradients, LieLikeTheLeaf) {
  run_ranks(3, [](World& world) {
    auto x = rows(world);
    ShardTensor(x).redistribute({Replicate()}).tensor().pow(2).sum().backward();
    EXPECT_EQ(ShardTensor(x.grad()).spec(), ShardTensor(x).spec());
    EXPECT_LE(relative_error(full(x.grad()), sample() * 2), 1e-6);
  });
}

TEST(LeafGradients, UserHooksAddedBeforeTheFirstUseSeeTheLeafsPlacement) {
  run_ranks(2, [](World& world) {
    auto x = rows(world);
    Placement seen = Partial();
    x.register_hook([&](const Tensor& g) {
      seen = ShardTensor(g).spec().placement();
      return g;
    });
    ShardTensor(x).redistribute({Shard(1)}).tensor().pow(2).sum().backward();
    EXPECT_EQ(seen, Shard(0));
  });
}

TEST(LeafGradients, FollowSetData) {
  run_ranks(2, [](World& world) {
    auto x = rows(world);
    (x * x).sum().backward();
    x.mutable_grad().reset();
    x.set_data(scatter_tensor(sample() * 3, 0, world.mesh(), {Shard(1)}));
    (x * x).sum().backward();
    EXPECT_EQ(ShardTensor(x.grad()).spec().placement(), Shard(1));
    EXPECT_LE(relative_error(full(x.grad()), sample() * 6), 1e-6);
  });
}

TEST(LeafGradients, AccumulateOverBackwards) {
  run_ranks(3, [](World& world) {
    auto x = rows(world);
    (x * x).sum().backward();
    (x * 2).mean().backward();
    EXPECT_LE(relative_error(full(x.grad()), sample() * 2 + 2.0 / 24), 1e-6);
  });
}

TEST(SetData, BetweenPlainAndShardedIsRefused) {
  run_ranks(2, [](World& world) {
    auto plain = sample().clone();
    EXPECT_THROW(plain.set_data(rows(world, false)), c10::Error);
    auto x = rows(world, false);
    EXPECT_THROW(x.set_data(sample().clone()), c10::Error);
    EXPECT_LE(relative_error(full(x), sample()), 0);
  });
}

TEST(Weights, GradientsArePlainAndComplete) {
  const auto w0 = torch::linspace(-1, 1, 4);
  auto w_plain = w0.clone().requires_grad_();
  (sample() * w_plain).tanh().sum().backward();
  run_ranks(3, [&](World& world) {
    auto w = w0.clone().requires_grad_();
    (rows(world) * w).tanh().sum().backward();
    EXPECT_FALSE(is_shard_tensor(w.grad()));
    EXPECT_LE(relative_error(w.grad(), w_plain.grad()), 1e-6);
  });
}

TEST(Weights, UsedTwiceAndInTwoGraphs) {
  const auto run = [](Tensor x, Tensor w) {
    auto a = ((x * w).tanh() * w).sum();
    auto b = (x * (w * 2)).pow(2).sum();
    a.backward();
    b.backward();
    return w.grad();
  };
  const auto w0 = torch::linspace(-1, 1, 4);
  const auto want = run(sample(), w0.clone().requires_grad_());
  run_ranks(3, [&](World& world) {
    EXPECT_LE(relative_error(run(rows(world), w0.clone().requires_grad_()), want), 1e-6);
  });
}

TEST(Backward, OfAPartialLossStartsFromOne) {
  run_ranks(4, [](World& world) {
    auto x = rows(world);
    auto loss = x.sum();
    EXPECT_TRUE(ShardTensor(loss).spec().is_partial());
    EXPECT_NEAR(loss.item<double>(), sample().sum().item<double>(), 1e-5);
    loss.backward();
    EXPECT_LE(relative_error(full(x.grad()), torch::ones({6, 4})), 0);
  });
}

TEST(Grad, AllowUnusedAndMissingInputs) {
  run_ranks(2, [](World& world) {
    auto x = rows(world);
    auto y = rows(world);
    const auto g = torch::autograd::grad({(x * x).sum()}, {x, y}, {}, true, false, true);
    EXPECT_TRUE(g[0].defined());
    EXPECT_FALSE(g[1].defined());
    EXPECT_THROW(torch::autograd::grad({(x * x).sum()}, {x, y}), c10::Error);
  });
}

TEST(Grad, RetainedGradientsOfInnerTensors) {
  run_ranks(2, [](World& world) {
    auto x = rows(world);
    auto y = x * 3;
    y.retain_grad();
    (y * y).sum().backward();
    EXPECT_LE(relative_error(full(y.grad()), sample() * 6), 1e-6);
  });
}

TEST(Grad, AnomalyModeNamesNaN) {
  run_ranks(2, [](World& world) {
    const torch::autograd::DetectAnomalyGuard guard;
    auto x = rows(world);
    (x * x).sum().backward();
    auto z = rows(world);
    EXPECT_THROW(((z - z) / (z - z)).sqrt().sum().backward(), c10::Error);
  });
}

TEST(Optimizers, StepOnASharedLeafAsOnAPlainOne) {
  const auto train = [](Tensor x) {
    torch::optim::Adam adam({x}, 0.1);
    for (int i = 0; i < 3; ++i) {
      adam.zero_grad();
      (x * x).sum().backward();
      adam.step();
    }
    torch::optim::SGD sgd({x}, torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int i = 0; i < 3; ++i) {
      sgd.zero_grad();
      (x * x).sum().backward();
      sgd.step();
    }
    return x.detach();
  };
  const auto want = train(sample().clone().requires_grad_());
  run_ranks(3,
            [&](World& world) { EXPECT_LE(relative_error(full(train(rows(world))), want), 1e-5); });
}

TEST(Detach, CloneAndDataShareOrCopyAsOnPlainTensors) {
  run_ranks(2, [](World& world) {
    auto x = rows(world);
    auto copy = x.detach().clone();
    auto data = x.data();
    EXPECT_FALSE(data.requires_grad());
    {
      const torch::NoGradGuard guard;
      data.add_(1);
    }
    EXPECT_LE(relative_error(full(x.detach()), sample() + 1), 1e-6);
    EXPECT_LE(relative_error(full(copy), sample()), 0);
  });
}

struct Square : torch::autograd::Function<Square> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list g) {
    return {g[0] * 2 * context->get_saved_variables()[0]};
  }
};

TEST(UserFunctions, RunOnShardTensors) {
  run_ranks(2, [](World& world) {
    auto x = rows(world);
    Square::apply(x).sum().backward();
    EXPECT_LE(relative_error(full(x.grad()), sample() * 2), 1e-6);
  });
}

/// Recomputes its forward in the backward: a nested backward a level.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& w,
                        int64_t depth) {
    context->save_for_backward({x, w});
    context->saved_data["depth"] = depth;
    const at::AutoGradMode guard(false);
    return (x * w).tanh();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list g) {
    const at::AutoGradMode guard(true);
    const auto saved = context->get_saved_variables();
    auto x = saved[0].detach().requires_grad_();
    auto w = saved[1].detach().requires_grad_();
    const int64_t depth = context->saved_data["depth"].toInt();
    const Tensor y = depth > 0 ? Checkpoint::apply(x, w, depth - 1) : (x * w).tanh();
    torch::autograd::backward({y}, {g[0]});
    return {x.grad(), w.grad(), Tensor()};
  }
};

TEST(NestedBackward, DeeperThanTheEngineKeepsOnOneThread) {
  const auto run = [](Tensor x, Tensor w) {
    (Checkpoint::apply(x, w, 70) * x).sum().backward();
    return std::pair{x.grad(), w.grad()};
  };
  const auto w0 = torch::linspace(-1, 1, 4);
  const auto want = run(sample().clone().requires_grad_(), w0.clone().requires_grad_());
  run_ranks(2, [&](World& world) {
    const auto got = run(rows(world), w0.clone().requires_grad_());
    EXPECT_LE(relative_error(full(got.first), want.first), 1e-5);
    EXPECT_LE(relative_error(got.second, want.second), 1e-5);
  });
}

/// Where hooks raise in a backward, by the name of the tensor they are on.
struct Throws {
  std::string where;
  void operator()(const std::string& here) const {
    if (here == where) throw std::runtime_error("from a hook");
  }
};

/// A forward with views, a convolution, a sum over the cut dim and weights; hooks on its tensors.
Tensor hooked_loss(const Tensor& x, const Tensor& w, const Tensor& kernel, const Throws& throws) {
  const auto hook = [&](const Tensor& t, const char* name) {
    t.register_hook([=](const Tensor& g) {
      throws(name);
      return g;
    });
    return t;
  };
  const auto a = hook((x * w).tanh(), "product");
  const auto y = hook(at::conv1d(a.t().unsqueeze(0), kernel, {}, 1, 1), "convolution");
  const auto z = hook(y.squeeze(0).slice(0, 1).select(0, 0).cos(), "view");
  return hook(z.sum(), "loss") + hook(a.mean(0), "mean").pow(2).sum();
}

struct ThreadModes {
  bool grad = at::GradMode::is_enabled();
  bool inference = c10::InferenceMode::is_enabled();
  bool view_replay = c10::AutogradState::get_tls_state().get_view_replay_enabled();
  c10::DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
  c10::DispatchKeySet excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  bool operator==(const ThreadModes&) const = default;
};

struct Leaves {
  Tensor x, w, kernel;
  Leaves(Tensor input)  // NOLINT(google-explicit-constructor)
      : x(std::move(input)),
        w(torch::linspace(-1, 1, 4).requires_grad_()),
        kernel(torch::linspace(-1, 1, 24).view({2, 4, 3}).requires_grad_()) {}
  Tensor loss(const Throws& throws = {}) const { return hooked_loss(x, w, kernel, throws); }
  void forget_gradients() {
    for (auto* t : {&x, &w, &kernel}) t->mutable_grad().reset();
  }
};

TEST(Hooks, ThatThrowOnEveryRankLeaveModesAndTheNextBackwardAsTheyWere) {
  Leaves plain(sample().clone().requires_grad_());
  plain.loss().backward();
  run_ranks(3, [&](World& world) {
    Leaves leaves(rows(world));
    const ThreadModes before;
    for (const bool create_graph : {false, true}) {
      for (const char* where : {"product", "convolution", "view", "loss", "mean"}) {
        const auto loss = leaves.loss({where});
        const auto backward = [&] {
          if (!create_graph) return loss.backward();
          torch::autograd::grad({loss}, {leaves.x, leaves.w, leaves.kernel}, {}, true, true);
        };
        EXPECT_THROW(backward(), std::runtime_error) << where;
        EXPECT_EQ(ThreadModes(), before) << where;
        leaves.forget_gradients();
        leaves.loss().backward();
        EXPECT_LE(relative_error(full(leaves.x.grad()), plain.x.grad()), 1e-5) << where;
        EXPECT_LE(relative_error(leaves.w.grad(), plain.w.grad()), 1e-5) << where;
        EXPECT_LE(relative_error(leaves.kernel.grad(), plain.kernel.grad()), 1e-5) << where;
        EXPECT_EQ(ThreadModes(), before) << where;
        leaves.forget_gradients();
      }
    }
  });
}

/// The level of forward-mode AD, one a process: opened around the ranks.
class ForwardLevel {
 public:
  ForwardLevel() : level_(torch::autograd::ForwardADLevel::get_next_idx()) {}
  ~ForwardLevel() { torch::autograd::ForwardADLevel::release_idx(level_); }
  ForwardLevel(const ForwardLevel&) = delete;
  ForwardLevel& operator=(const ForwardLevel&) = delete;

  static Tensor dual(const Tensor& x, const Tensor& tangent) {
    return at::_make_dual(x, tangent, 0);
  }
  static Tensor primal(const Tensor& y) { return std::get<0>(at::_unpack_dual(y, 0)); }
  static Tensor tangent(const Tensor& y) { return std::get<1>(at::_unpack_dual(y, 0)); }

 private:
  uint64_t level_;
};

TEST(ForwardMode, TangentsAreRefusedByPatchesRatherThanLost) {
  const ForwardLevel level;
  run_ranks(2, [](World& world) {
    const auto mesh = world.mesh();
    const auto image = shard::zeros({1, 2, 6, 4}, mesh, {Shard(2)});
    const auto x = rows(world, false);
    const auto dual = ForwardLevel::dual(x, at::ones_like(x));
    const auto picture = ForwardLevel::dual(image, at::ones_like(image));
    const std::vector<std::pair<const char*, std::function<void()>>> ways{
        {"linear",
         [&] {
           at::linear(dual, torch::ones({3, 4}));
         }},
        {"convolution with halos",
         [&] {
           at::conv2d(picture, torch::ones({3, 2, 3, 3}), {}, 1, 1);
         }},
        {"pointwise convolution",
         [&] {
           at::conv2d(picture, torch::ones({3, 2, 1, 1}));
         }},
        {"max_pool", [&] { at::max_pool2d(picture, 3, 1, 1); }},
        {"pad",
         [&] {
           at::reflection_pad2d(picture, {1, 1, 1, 1});
         }},
        {"upsample",
         [&] {
           at::upsample_bilinear2d(picture, {12, 8}, false);
         }},
        {"sum over the cut dim", [&] { dual.sum(0); }},
        {"redistribute", [&] { ShardTensor(dual).redistribute({Replicate()}); }},
        {"redistribute to another dim", [&] { ShardTensor(dual).redistribute({Shard(1)}); }},
        {"full", [&] { (void)ShardTensor(dual).full(); }},
        {"to_local", [&] { to_local(dual); }},
        {"from_local",
         [&] {
           const auto local = torch::ones({3, 4});
           from_local(ForwardLevel::dual(local, local), mesh, {Shard(0)});
         }},
    };
    for (const auto& [name, way] : ways) EXPECT_THROW(way(), SpecMismatch) << name;
    EXPECT_EQ(x.sum().item<float>(), sample().sum().item<float>());
  });
}

TEST(ForwardMode, TangentsPassThroughLibTorchsFormulas) {
  using Op = std::function<Tensor(const Tensor&)>;
  const std::vector<std::pair<const char*, Op>> ops{
      {"relu", [](const Tensor& x) { return x.relu(); }},
      {"sin", [](const Tensor& x) { return x.sin(); }},
      {"mul", [](const Tensor& x) { return x * x; }},
      {"a plain factor", [](const Tensor& x) { return x * torch::linspace(-1, 1, 4); }},
      {"transpose", [](const Tensor& x) { return x.t().exp(); }},
  };
  const auto direction = sample().cos();
  const ForwardLevel level;
  run_ranks(2, [&](World& world) {
    const auto x = rows(world, false);
    const auto tangent = scatter_tensor(direction, 0, world.mesh(), {Shard(0)});
    for (const auto& [name, op] : ops) {
      // The plain tensors are made apart on each rank: a dual is one rank's own.
      const auto want = op(ForwardLevel::dual(sample().clone(), direction.clone()));
      const auto got = op(ForwardLevel::dual(x, tangent));
      const auto got_tangent = ForwardLevel::tangent(got);
      ASSERT_TRUE(is_shard_tensor(got_tangent)) << name;
      EXPECT_EQ(got_tangent.sizes(), got.sizes()) << name;
      EXPECT_LE(relative_error(full(got_tangent), ForwardLevel::tangent(want)), 1e-6) << name;
      EXPECT_LE(relative_error(full(ForwardLevel::primal(got)), ForwardLevel::primal(want)), 1e-6)
          << name;
    }
  });
}

}  // namespace
}  // namespace shard::testing
