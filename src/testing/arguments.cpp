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

Partition pieces_of(int64_t n, int parts, const std::string& name) {
  for (auto& [split, partition] : splits(n, parts)) {
    if (split == name) return std::move(partition);
  }
  raise<ConfigError>("conformance", "split: got '", name,
                     "'; expected one of splits(). Correct the setting.");
}

/// One a mesh dim of a 2 x 2 mesh; where both cut one tensor dim, the first has all four pieces.
std::vector<Partition> grid_pieces(const Input& input, const Placements& placements,
                                   const std::string& split) {
  const bool cut_one_dim = placements[0] == placements[1];
  std::vector<Partition> pieces(2);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!placements[i].is_shard() || (cut_one_dim && i > 0)) continue;
    pieces[i] = pieces_of(input.whole.size(placements[i].dim()), cut_one_dim ? 4 : 2, split);
  }
  return pieces;
}

}  // namespace

Tensor whole_argument(const Input& input) { return input.whole.detach().clone(); }

Scatter scatter_of(const World& world, const Setting& setting) {
  if (setting.grid >= 0) {
    return [mesh = world.mesh({{"a", 2}, {"b", 2}}), setting](const Input& input) {
      const auto placements = grid_way(setting.grid).placements(input);
      return scatter_tensor(input.whole.detach(), 0, mesh, placements,
                            grid_pieces(input, placements, setting.split));
    };
  }
  return [mesh = world.mesh(), setting](const Input& input) {
    return scatter_tensor(
        input.whole.detach(), 0, mesh, {Shard(input.shard_dim)},
        pieces_of(input.whole.size(input.shard_dim), setting.ranks, setting.split));
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
