// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <shard/fill.h>

namespace shard {

/// Fills `own`, the plain tensor below all levels of `whole` or a result that lies like it.
void fill_part(const at::Tensor& own, const at::Tensor& whole, const Sampler& sampler,
               const at::Generator& generator);

}  // namespace shard
