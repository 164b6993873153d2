// SPDX-License-Identifier: Apache-2.0
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <shard/launch.h>
#include <torch/torch.h>

#include <map>
#include <mutex>

namespace shard::testing {
namespace {

using torch::Tensor;

/// What `draw` gives on each of `ranks` ranks.
std::vector<Tensor> on_ranks(int ranks, const std::function<Tensor(World&)>& draw,
                             LaunchOptions options = {}) {
  std::vector<Tensor> drawn(static_cast<size_t>(ranks));
  run_ranks(
      ranks, [&](World& world) { drawn[static_cast<size_t>(world.rank())] = draw(world); },
      options);
  return drawn;
}

void expect_all_equal(const std::vector<Tensor>& drawn) {
  for (const Tensor& tensor : drawn) EXPECT_TRUE(at::equal(tensor, drawn[0]));
}

Tensor flat(const torch::nn::Module& module) {
  std::vector<Tensor> all;
  for (const Tensor& parameter : module.parameters()) all.push_back(parameter.detach().flatten());
  return torch::cat(all);
}

Tensor build_model() {
  const torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)),
                                    torch::nn::Linear(100, 50), torch::nn::Embedding(10, 4),
                                    torch::nn::LSTM(4, 5));
  return flat(*model);
}

TEST(RankGenerators, BuildEqualModelsOnAllRanks) {
  expect_all_equal(on_ranks(4, [](World&) { return build_model(); }));
}

TEST(RankGenerators, GiveEqualNumbersThroughEveryRandomOp) {
  expect_all_equal(on_ranks(4, [](World&) {
    const Tensor x = torch::ones({100});
    std::vector<Tensor> drawn;
    drawn.push_back(torch::rand({10}));
    drawn.push_back(torch::randn({10}));
    drawn.push_back(torch::randint(9, {10}).to(torch::kFloat));
    drawn.push_back(torch::randperm(10).to(torch::kFloat));
    drawn.push_back(torch::dropout(x, 0.5, true));
    drawn.push_back(torch::bernoulli(x * 0.5));
    drawn.push_back(torch::multinomial(x, 5).to(torch::kFloat));
    drawn.push_back(torch::rand_like(x));
    drawn.push_back(torch::normal(0, 1, {10}));
    drawn.push_back(torch::poisson(x));
    drawn.push_back(torch::empty({10}).uniform_());
    drawn.push_back(torch::empty({10}).exponential_());
    drawn.push_back(torch::rrelu(-x, 0.1, 0.3, true));
    return torch::cat(drawn);
  }));
}

TEST(RankGenerators, StartFromTheSeedOfTheOptions) {
  const auto draw = [](World&) { return torch::randn({20}); };
  LaunchOptions other;
  other.seed = 5;
  const Tensor first = on_ranks(2, draw)[0];
  EXPECT_TRUE(at::equal(first, on_ranks(3, draw)[2]));
  EXPECT_FALSE(at::equal(first, on_ranks(2, draw, other)[0]));
}

TEST(RankGenerators, AreSeededByTorchManualSeed) {
  at::manual_seed(42);
  const Tensor expected = torch::randn({20});
  const auto drawn = on_ranks(4, [](World&) {
    torch::rand({3});
    torch::manual_seed(42);
    return torch::randn({20});
  });
  for (const Tensor& tensor : drawn) EXPECT_TRUE(at::equal(tensor, expected));
}

TEST(RankGenerators, AreSeededByShardManualSeed) {
  expect_all_equal(on_ranks(3, [](World& world) {
    torch::rand({world.rank() + 1});
    manual_seed(9);
    return torch::randn({20});
  }));
}

// Ranks seed at their own time. Neither the seed of another rank nor the same seed a second time
// may be missed or taken for one's own.
TEST(RankGenerators, AreSeededByTheirOwnRankOnly) {
  const auto drawn = on_ranks(2, [](World& world) {
    std::vector<Tensor> numbers;
    for (int i = 0; i < 2; ++i) {
      if (world.rank() == 1) world.comm().barrier();
      torch::manual_seed(3);
      numbers.push_back(torch::rand({4}));
      if (world.rank() == 0) world.comm().barrier();  // rank 1 seeds while rank 0 is in mid-stream
      world.comm().barrier();
      numbers.push_back(torch::rand({4}));
    }
    EXPECT_TRUE(at::equal(numbers[0], numbers[2]));
    EXPECT_TRUE(at::equal(numbers[1], numbers[3]));
    EXPECT_FALSE(at::equal(numbers[0], numbers[1]));
    return torch::cat(numbers);
  });
  expect_all_equal(drawn);
}

TEST(RankGenerators, LeaveTheProcessesOwnGeneratorAlone) {
  torch::manual_seed(1);
  const Tensor expected = torch::randn({33});
  torch::manual_seed(1);
  Tensor first = torch::randn({16});
  run_ranks(2, [](World&) {
    torch::manual_seed(77);
    torch::randn({100});
  });
  EXPECT_TRUE(at::equal(torch::cat({first, torch::randn({17})}), expected));
}

TEST(RankGenerators, SaveAndRestoreTheirStateThroughTheDefaultGenerator) {
  run_ranks(3, [](World& world) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    torch::rand({world.rank() + 1});
    const Tensor state = generator.get_state();
    const Tensor once = torch::rand({5});
    EXPECT_TRUE(at::equal(state, default_generator().get_state()) == false);
    generator.set_state(state);
    EXPECT_TRUE(at::equal(torch::rand({5}), once));
    default_generator().set_state(state);
    EXPECT_TRUE(at::equal(torch::rand({5}), once));
    at::Generator copy = default_generator().clone();
    EXPECT_TRUE(at::equal(torch::rand({5}, copy), torch::rand({5})));
  });
}

TEST(RankGenerators, GiveWayToAnExplicitGenerator) {
  run_ranks(2, [](World&) {
    auto own = at::detail::createCPUGenerator(8);
    auto same = at::detail::createCPUGenerator(8);
    EXPECT_TRUE(at::equal(torch::rand({5}, own), torch::rand({5}, same)));
    manual_seed(4);
    const Tensor expected = torch::rand({5});
    manual_seed(4);
    EXPECT_TRUE(at::equal(torch::rand({5}, at::detail::getDefaultCPUGenerator()), expected));
  });
}

/// Draws random numbers at the bottom of `depth` nested backward passes.
struct DrawInBackward : torch::autograd::Function<DrawInBackward> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor x, int64_t depth,
                        std::vector<Tensor>* drawn) {
    context->saved_data["depth"] = depth;
    context->saved_data["drawn"] = reinterpret_cast<int64_t>(drawn);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    draw(context->saved_data["depth"].toInt(),
         reinterpret_cast<std::vector<Tensor>*>(context->saved_data["drawn"].toInt()));
    return {gradients[0], Tensor(), Tensor()};
  }
  static void draw(int64_t depth, std::vector<Tensor>* drawn) {
    if (depth == 0) return drawn->push_back(torch::rand({5}));
    const torch::AutoGradMode on(true);
    const Tensor x = torch::ones({1}, torch::requires_grad());
    DrawInBackward::apply(x, depth - 1, drawn).sum().backward();
  }
};

TEST(RankGenerators, FollowTheRankToThreadsOfDeepBackward) {
  const auto drawn = on_ranks(3, [](World&) {
    std::vector<Tensor> numbers;
    manual_seed(6);
    const Tensor expected = torch::rand({5});
    manual_seed(6);
    DrawInBackward::draw(70, &numbers);
    EXPECT_TRUE(at::equal(numbers[0], expected));
    return numbers[0];
  });
  expect_all_equal(drawn);
}

TEST(RankGenerators, ReproduceTraining) {
  const auto train = [](World&) {
    torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::Dropout(0.3),
                                torch::nn::Linear(16, 1));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    for (int i = 0; i < 5; ++i) {
      optimizer.zero_grad();
      model->forward(torch::randn({4, 8})).square().mean().backward();
      optimizer.step();
    }
    return flat(*model);
  };
  const auto once = on_ranks(4, train);
  expect_all_equal(once);
  EXPECT_TRUE(at::equal(once[0], on_ranks(2, train)[1]));
}

}  // namespace
}  // namespace shard::testing
