// SPDX-License-Identifier: Apache-2.0
// The arguments that a sample's function is called with: plain, or scattered as a setting says.
#pragma once

#include <shard/launch.h>
#include <shard/testing.h>

#include <functional>
#include <vector>

namespace shard::testing {

/// Makes the argument of an input that is to be sharded. Collective.
using Scatter = std::function<at::Tensor(const Input&)>;
/// For a run of plain LibTorch: the whole tensor.
at::Tensor whole_argument(const Input& input);
/// For the ranks of `world`. Collective.
Scatter scatter_of(const World& world, const Setting& setting);

std::vector<at::Tensor> make_arguments(const Sample& sample, const Scatter& scatter);
/// Those of the arguments that the sample is differentiated by; they require a gradient then.
std::vector<at::Tensor> make_leaves(const Sample& sample, const std::vector<at::Tensor>& arguments);

}  // namespace shard::testing
