// SPDX-License-Identifier: Apache-2.0
// How good the model is: RMSE in turbidity units on the months it never had to predict, beside two
// predictions that need no model. All sums run over sharded tensors; no rank gathers a field.
#pragma once

#include <shard/communicator.h>

#include <string>
#include <vector>

#include "options.h"
#include "sharded_field.h"
#include "unet.h"

namespace global_field {

struct Score {
  std::string month;  ///< "February", ..., "pooled"
  double model = 0;
  double persistence = 0;    ///< next month = this month
  double training_mean = 0;  ///< per-point mean of the nine training months
};

/// One line per held-out month and one pooled. Collective.
std::vector<Score> evaluate(UNet& model, const ShardedField& field);

std::string score_table(const std::vector<Score>& scores);

/// Writes scores.json and trace.csv (step, loss) to the output folder. Rank 0 only.
void write_report(const Options& options, const std::vector<Score>& scores,
                  const std::vector<double>& losses);

}  // namespace global_field
