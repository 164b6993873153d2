// SPDX-License-Identifier: Apache-2.0
// The options of the program. One table (options.cpp) makes the flags, the keys of the JSON file,
// and the printed configuration.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace global_field {

struct Options {
  std::string data = "data";
  std::string output = "build/global_field";
  int64_t reduce = 4;
  int64_t ranks = 0;           ///< thread ranks; 0: what launch finds
  std::vector<int64_t> split;  ///< rows of every rank (or row of ranks); empty: even
  std::string domain;          ///< "RxC": R x C ranks cut rows and columns; empty: rows only
  int64_t width = 16;
  int64_t steps = 30;
  double learning_rate = 3e-3;
  int64_t seed = 0;
  std::string precision = "float32";
  std::string device = "cpu";
  int64_t checkpoint_every = 100;  ///< steps; 0: at the end only
  bool resume = false;
  bool verify = false;
  bool quiet = false;
  bool break_halo = false;  ///< test only: convolutions forget their neighbours

  /// Ranks along rows and columns; 0 rows: all ranks that there are.
  struct DomainShape {
    int64_t rows = 0;
    int64_t columns = 1;
  };
  DomainShape domain_shape() const;
  torch::Dtype dtype() const { return precision == "float64" ? torch::kFloat64 : torch::kFloat32; }
  std::string checkpoint_path() const { return output + "/checkpoint.pt"; }
};

/// What main does with the command line.
struct CommandLine {
  Options options;
  std::string help;  ///< not empty: print this and stop
};

/// Defaults, then the JSON file of --config, then the flags. Errors: shard::ConfigError,
/// shard::FileError.
CommandLine parse_command_line(int argc, char** argv);

/// The options as a JSON object that --config accepts.
std::string to_json(const Options& options);

/// The options that the course of the training depends on: a checkpoint fits only equal ones.
/// Errors: shard::ConfigError naming the first that differs.
void require_same_training(const Options& options, const std::string& checkpoint_json);

}  // namespace global_field
