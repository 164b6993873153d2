// SPDX-License-Identifier: Apache-2.0
// What trials draw with. The parameters of a call may give numbers that are all equal, as
// bernoulli_(0) does: these tell nothing about where numbers come from.
#pragma once

#include <shard/fill.h>

namespace shard {

/// The kernel of `sampler` with parameters that give different numbers; `sampler` itself where no
/// others are known.
Sampler trial_sampler(const Sampler& sampler);

}  // namespace shard
