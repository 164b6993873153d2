// SPDX-License-Identifier: Apache-2.0
#include "testing/arguments.h"

#include <shard/error.h>

#include "testing/grid_ways.h"

namespace shard::testing {
namespace {

using at::Tensor;

bool is_differentiable(const Input& input) {
  return input.differentiable && (input.whole.is_floating_point() || input.whole.is_complex());
}

}  // namespace

Tensor whole_argument(const Input& input) { return input.whole.detach().clone(); }

Scatter scatter_of(const World& world, const Setting& setting) {
  if (setting.grid >= 0) {
    return [mesh = world.mesh({{"a", 2}, {"b", 2}}), setting](const Input& input) {
      return scatter_tensor(input.whole.detach(), 0, mesh,
                            grid_way(setting.grid).placements(input));
    };
  }
  return [mesh = world.mesh(), setting](const Input& input) {
    for (const auto& [split, partition] :
         splits(input.whole.size(input.shard_dim), setting.ranks)) {
      if (split != setting.split) continue;
      return scatter_tensor(input.whole.detach(), 0, mesh, {Shard(input.shard_dim)}, partition);
    }
    raise<ConfigError>("conformance", "split: got '", setting.split,
                       "'; expected one of splits(). Correct the setting.");
  };
}

std::vector<Tensor> make_arguments(const Sample& sample, const Scatter& scatter) {
  std::vector<Tensor> arguments;
  for (const auto& input : sample.inputs) {
    arguments.push_back(input.shard_dim < 0 ? whole_argument(input) : scatter(input));
  }
  return arguments;
}

std::vector<Tensor> make_leaves(const Sample& sample, const std::vector<Tensor>& arguments) {
  std::vector<Tensor> leaves;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!is_differentiable(sample.inputs[i])) continue;
    leaves.push_back(arguments[i].set_requires_grad(true));
  }
  return leaves;
}

}  // namespace shard::testing
