// SPDX-License-Identifier: Apache-2.0
// Moving local tensors from one spec to another, without autograd. primitives.cpp adds the
// gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/mesh.h>
#include <shard/spec.h>

namespace shard {

/// The local tensor of `to` given that of `from`. Both have the same global shape. Collective over
/// the mesh, except for Replicate -> anything and unchanged layouts. Never aliases `local` unless
/// the layout is unchanged.
at::Tensor redistribute_local(const at::Tensor& local, const ShardTensorSpec& from,
                              const ShardTensorSpec& to, const DeviceMesh& mesh);

}  // namespace shard
