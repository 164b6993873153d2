// SPDX-License-Identifier: Apache-2.0
// The training itself: plain torch::nn and torch::optim on whatever tensors the samples are.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/optim/adamw.h>

#include <vector>

#include "dataset.h"
#include "options.h"
#include "unet.h"

namespace global_field {

/// Everything that a checkpoint holds besides the generators.
class Training {
 public:
  Training(const Options& options, UNet model);

  /// Target month of the next step; the training months in a new random order every nine steps.
  int64_t next_month();
  /// One optimizer step on one sample; returns the loss (model units squared).
  double step(const Sample& sample);

  bool is_finished() const { return steps_done() >= options_.steps; }
  int64_t steps_done() const { return static_cast<int64_t>(losses.size()); }

  UNet model;
  torch::optim::AdamW optimizer;
  std::vector<double> losses;  ///< one a step
  std::vector<int64_t> order;  ///< months still to come in this round

 private:
  /// Linear warm-up, then a cosine down to 2 %.
  double learning_rate() const;
  Options options_;
};

}  // namespace global_field
