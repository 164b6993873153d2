// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <shard/atomic_file.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace global_field {
namespace {

constexpr std::array<const char*, 12> kMonthNames = {
    "January", "February", "March",     "April",   "May",      "June",
    "July",    "August",   "September", "October", "November", "December"};

double mean_square(const torch::Tensor& prediction, const torch::Tensor& target) {
  return (prediction - target).square().mean().item<double>() * kUnit * kUnit;
}

/// The same with mean squares, which can be averaged over months.
Score mean_squares(UNet& model, const Sample& sample, const torch::Tensor& training_mean) {
  return {"", mean_square(model->forward(sample.input), sample.target),
          mean_square(sample.input.narrow(1, kBaseChannel, 1), sample.target),
          mean_square(training_mean, sample.target)};
}

Score root(const Score& squares, const std::string& month, double months = 1) {
  return {month, std::sqrt(squares.model / months), std::sqrt(squares.persistence / months),
          std::sqrt(squares.training_mean / months)};
}

}  // namespace

std::vector<Score> evaluate(UNet& model, const ShardedField& field) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor training_mean = field.training_mean();
  std::vector<Score> scores;
  Score sum;
  for (const int64_t month : kHeldOutMonths) {
    const Score squares = mean_squares(model, field.sample(month), training_mean);
    scores.push_back(root(squares, kMonthNames[static_cast<size_t>(month)]));
    sum.model += squares.model;
    sum.persistence += squares.persistence;
    sum.training_mean += squares.training_mean;
  }
  scores.push_back(root(sum, "pooled", static_cast<double>(kHeldOutMonths.size())));
  return scores;
}

std::string score_table(const std::vector<Score>& scores) {
  std::string table = "RMSE (Linke turbidity)   model  persistence  mean of training months\n";
  for (const Score& score : scores) {
    char line[120];
    std::snprintf(line, sizeof line, "%-22s %7.4f %12.4f %24.4f\n", score.month.c_str(),
                  score.model, score.persistence, score.training_mean);
    table += line;
  }
  return table;
}

void write_report(const Options& options, const std::vector<Score>& scores,
                  const std::vector<double>& losses) {
  nlohmann::json table = nlohmann::json::array();
  for (const Score& score : scores) {
    table.push_back({{"month", score.month},
                     {"model", score.model},
                     {"persistence", score.persistence},
                     {"training_mean", score.training_mean}});
  }
  shard::io::write_file_atomically(options.output + "/scores.json", table.dump(2) + "\n");
  std::string trace = "step,loss\n";
  for (size_t step = 0; step < losses.size(); ++step) {
    char line[64];
    std::snprintf(line, sizeof line, "%zu,%.17g\n", step + 1, losses[step]);
    trace += line;
  }
  shard::io::write_file_atomically(options.output + "/trace.csv", trace);
}

}  // namespace global_field
