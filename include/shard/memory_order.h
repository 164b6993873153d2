// SPDX-License-Identifier: Apache-2.0
// The order in which the dims of a tensor lie in memory.
//
// NOTE [One memory order on all ranks]
// What contiguous(), view() and reshape() do depends on strides, so the strides of a wrapper must
// be the same on every rank. Those of a local tensor cannot always tell the order: a rank with one
// row, or none, may have strides that fit several. Where that can be, the order is taken from
// metadata, the wrapper gets it by set_order and the local tensor by in_order.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/spec.h>

namespace shard {

/// Strides of a dense tensor of `sizes` whose dims lie in the order of a tensor with strides
/// `like`.
Shape strides_in_order(c10::IntArrayRef sizes, c10::IntArrayRef like);

/// `local`, or a copy of it when its dims lie in another order.
at::Tensor in_order(const at::Tensor& local, c10::IntArrayRef like);

/// Gives all levels of a ShardTensor dense strides in the order of `like`.
void set_order(const at::Tensor& tensor, c10::IntArrayRef like);

/// Whether some rank has too few rows for its local tensor to tell an order.
bool has_thin_pieces(const ShardTensorSpec& spec);

/// A new local part of `spec`, contiguous where some rank cannot tell its order. Differentiable.
at::Tensor in_common_order(const at::Tensor& local, const ShardTensorSpec& spec);

}  // namespace shard
