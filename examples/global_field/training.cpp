// SPDX-License-Identifier: Apache-2.0
#include "training.h"

#include <torch/nn/functional/loss.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace global_field {
namespace {

constexpr double kWarmUpSteps = 10;
constexpr double kLastRate = 0.02;

}  // namespace

Training::Training(const Options& options, UNet model)
    : model(std::move(model)),
      optimizer(this->model->parameters(), torch::optim::AdamWOptions(options.learning_rate)),
      options_(options) {}

int64_t Training::next_month() {
  if (order.empty()) {
    const auto random = torch::randperm(static_cast<int64_t>(kTrainingMonths.size()));
    for (int64_t i = 0; i < random.size(0); ++i) {
      order.push_back(kTrainingMonths[static_cast<size_t>(random[i].item<int64_t>())]);
    }
  }
  const int64_t month = order.back();
  order.pop_back();
  return month;
}

double Training::step(const Sample& sample) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(learning_rate());
  optimizer.zero_grad();
  const torch::Tensor loss = torch::mse_loss(model->forward(sample.input), sample.target);
  loss.backward();
  optimizer.step();
  losses.push_back(loss.item<double>());
  return losses.back();
}

double Training::learning_rate() const {
  const auto step = static_cast<double>(steps_done());
  const double warm_up = std::min(1.0, (step + 1) / kWarmUpSteps);
  const double progress = step / static_cast<double>(options_.steps);
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return options_.learning_rate * warm_up * (kLastRate + (1 - kLastRate) * cosine);
}

}  // namespace global_field
