// SPDX-License-Identifier: Apache-2.0
// The passes over large tensors that a normalization with statistics over several ranks is made of.
// LibTorch has them only inside ops that compute the statistics of the local tensor on the way. A
// tensor is seen as rows of equal length; per-row coefficients are double tensors of one entry a
// row. Each pass reads its inputs once.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace shard {

/// Mean and sum of squared deviations from it, per row of `x` (rows, length). Zeros for empty rows.
std::pair<at::Tensor, at::Tensor> row_moments(const at::Tensor& x);

/// (x - mean) * scale + shift
at::Tensor row_affine(const at::Tensor& x, const at::Tensor& mean, const at::Tensor& scale,
                      const at::Tensor& shift);

/// Per row: the sums of g and of g * (x - mean).
std::pair<at::Tensor, at::Tensor> row_products(const at::Tensor& g, const at::Tensor& x,
                                               const at::Tensor& mean);

/// g * a + (x - mean) * b + c
at::Tensor row_combination(const at::Tensor& g, const at::Tensor& x, const at::Tensor& mean,
                           const at::Tensor& a, const at::Tensor& b, const at::Tensor& c);

}  // namespace shard
