// SPDX-License-Identifier: Apache-2.0
#include "support/training_check.h"

#include <gtest/gtest.h>
#include <shard/shard.h>
#include <torch/torch.h>

#include <mutex>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr double kTolerance = 1e-10;
constexpr int kSteps = 3;

struct Course {
  std::vector<double> losses;  ///< before every step, and after the last
  Tensors weights;             ///< after the last
};

Course train(const Training& training, const Tensors& inputs) {
  manual_seed(5);
  const Trainee model = training.make();
  torch::optim::SGD optimizer(model.parameters, training.learning_rate);
  Course course;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Tensor loss = model.loss(inputs);
    loss.backward();
    optimizer.step();
    course.losses.push_back(loss.item<double>());
  }
  const torch::NoGradGuard guard;
  course.losses.push_back(model.loss(inputs).item<double>());
  for (const auto& weight : model.parameters) course.weights.push_back(weight.detach().clone());
  return course;
}

Tensors whole_inputs(const Training& training) {
  Tensors inputs;
  for (const auto& input : training.inputs) inputs.push_back(input.whole);
  return inputs;
}

/// Cut in the manner that splits() names, each by its own length.
Tensors cut_inputs(const Training& training, size_t manner, const World& world) {
  Tensors inputs;
  for (const auto& [whole, dim, differentiable] : training.inputs) {
    if (dim < 0) {
      inputs.push_back(whole);
      continue;
    }
    const auto partition = splits(whole.size(dim), world.size())[manner].second;
    inputs.push_back(scatter_tensor(whole, 0, world.mesh(), {Shard(dim)}, partition));
  }
  return inputs;
}

Tensor flat(const Tensors& tensors) {
  Tensors parts;
  for (const auto& tensor : tensors) parts.push_back(tensor.detach().reshape({-1}));
  return torch::cat(parts);
}

/// Otherwise equal results would not say much.
void expect_that_it_learns(const Training& training, const Course& course) {
  manual_seed(5);
  const double moved = relative_error(flat(course.weights), flat(training.make().parameters));
  EXPECT_GT(moved, 100 * kTolerance);
  EXPECT_GT(std::abs(course.losses.back() - course.losses.front()),
            0.05 * std::abs(course.losses.front()))
      << training.name << ": " << course.losses.front() << " -> " << course.losses.back();
}

void compare(const Course& got, const Course& want) {
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], kTolerance * std::abs(want.losses[i])) << i;
  }
  ASSERT_EQ(got.weights.size(), want.weights.size());
  for (size_t i = 0; i < want.weights.size(); ++i) {
    EXPECT_LE(relative_error(got.weights[i], want.weights[i]), kTolerance) << "weight " << i;
  }
}

}  // namespace

void expect_training_equals_plain(const Training& training, World& world) {
  static std::mutex mutex;  // gtest's traces and failures of thread ranks
  const auto want = train(training, whole_inputs(training));
  {
    const std::lock_guard lock(mutex);
    expect_that_it_learns(training, want);
  }
  const auto& first = training.inputs[0];
  const auto manners = splits(first.whole.size(first.shard_dim), world.size());
  for (size_t manner = 0; manner < manners.size(); ++manner) {
    const auto got = train(training, cut_inputs(training, manner, world));
    const std::lock_guard lock(mutex);
    SCOPED_TRACE(c10::str(training.name, ", ", world.size(), " ranks, ", manners[manner].first,
                          ", rank ", world.rank()));
    compare(got, want);
  }
}

}  // namespace shard::testing
