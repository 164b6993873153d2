// SPDX-License-Identifier: Apache-2.0
// Unmodified torch::nn networks on ShardTensors against plain LibTorch: forward, input and weight
// gradients, and the weight gradients of a gradient penalty, for every way to cut the input. For
// thread and MPI ranks alike.
#pragma once

#include <shard/launch.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <string>
#include <vector>

namespace shard::testing {

struct Network {
  std::string name;
  std::function<torch::nn::Sequential()> make;
  std::vector<int64_t> input;  ///< sizes
  int64_t shard_dim;
};
const std::vector<Network>& networks();

/// Collective over `world`; fails the current gtest with the split and what differs.
void expect_network_equals_plain(const Network& network, World& world);

}  // namespace shard::testing
