// SPDX-License-Identifier: Apache-2.0
// What travels of a tensor. Plain tensors travel as they are; a wrapper travels as what it wraps.
// The layer that makes wrappers says what that is, so that communicators need not know it.
#pragma once

#include <ATen/core/Tensor.h>

namespace shard {

/// The tensor with the values of a wrapper; other tensors themselves.
using Unwrap = const at::Tensor& (*)(const at::Tensor&);
void set_unwrap(Unwrap unwrap);

/// To be written: the tensor itself, or what it wraps.
at::Tensor writable(const at::Tensor& tensor);
/// To be read as bytes: also written out if its bytes are not its values (conjugated and negated
/// views, zeros without memory that LibTorch's formulas make).
at::Tensor readable(const at::Tensor& tensor);
std::vector<at::Tensor> writable(std::vector<at::Tensor> tensors);
std::vector<at::Tensor> readable(std::vector<at::Tensor> tensors);

/// Whether writable() and readable() would be another tensor.
bool is_wrapper(const at::Tensor& tensor);
bool is_special(const at::Tensor& tensor);
bool any_wrapper(const std::vector<at::Tensor>& tensors);
bool any_special(const std::vector<at::Tensor>& tensors);

}  // namespace shard
