// SPDX-License-Identifier: Apache-2.0
// A few steps of training on ShardTensors against plain LibTorch: losses and weights, for every way
// to cut the inputs. For thread and MPI ranks alike.
#pragma once

#include <shard/launch.h>
#include <shard/testing.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace shard::testing {

/// A model as a test sees it.
struct Trainee {
  std::vector<at::Tensor> parameters;
  Function loss;
};

struct Training {
  std::string name;
  std::function<Trainee()> make;  ///< a new model in float64, drawn from the rank's generator
  std::vector<Input> inputs;      ///< the cut ones are cut in the same manner
  double learning_rate;
};
inline std::ostream& operator<<(std::ostream& out, const Training& training) {
  return out << training.name;
}

/// The models of examples/.
const std::vector<Training>& example_trainings();

/// Three steps of SGD on the tensors and on their shards. Fails the current gtest with the split
/// and what differs; also when the plain training moves the loss by less than 5 % or the weights by
/// less than 100 times the tolerance. Collective over `world`. `manners`: names of splits(); none:
/// all.
void expect_training_equals_plain(const Training& training, World& world,
                                  const std::vector<std::string>& manners = {});

}  // namespace shard::testing
