// SPDX-License-Identifier: Apache-2.0
// Ops whose own kernel or gradient formula asks for the whole tensor, written as what they are made
// of: the parts know how to lie.
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/all.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <shard/patch.h>

#include <limits>
#include <numeric>
#include <vector>

namespace shard {
namespace {

using at::Tensor;
using Dtype = std::optional<at::ScalarType>;

// ---- sums

Tensor nansum(const Tensor& x, at::OptionalIntArrayRef dims, bool keepdim, Dtype dtype) {
  const Tensor values = x.is_floating_point() ? at::where(x.isnan(), at::zeros_like(x), x) : x;
  return at::sum(values, dims, keepdim, dtype);
}

Tensor count_nonzero_dims(const Tensor& x, c10::IntArrayRef dims) {
  return at::sum(x.ne(0), dims.empty() ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(dims));
}
Tensor count_nonzero(const Tensor& x, std::optional<int64_t> dim) {
  return dim ? at::sum(x.ne(0), {*dim}) : at::sum(x.ne(0));
}

/// Slices along `dim` longer than `most` become as long as that.
Tensor renorm(const Tensor& x, const at::Scalar& p, int64_t dim, const at::Scalar& most) {
  std::vector<int64_t> others(static_cast<size_t>(x.dim()));
  std::iota(others.begin(), others.end(), 0);
  others.erase(others.begin() + at::maybe_wrap_dim(dim, x.dim()));
  const Tensor length = at::linalg_vector_norm(x, p, others, true);
  constexpr double kLibTorchs = 1e-7;
  const Tensor factor = at::where(length.gt(most), (length + kLibTorchs).reciprocal() * most, 1.0);
  return x * factor.to(x.scalar_type());
}

/// Rows of -inf only give zeros, and get zeros as gradients.
Tensor safe_softmax(const Tensor& x, int64_t dim, Dtype dtype) {
  const Tensor is_empty = at::all(x.eq(-std::numeric_limits<double>::infinity()), dim, true);
  const Tensor result = at::softmax(at::where(is_empty, at::zeros_like(x), x), dim, dtype);
  return at::where(is_empty, at::zeros_like(result), result);
}

/// How much the other classes come within `margin` of the right one, summed over them, by sample.
Tensor multi_margin_loss(const Tensor& x, const Tensor& target, const at::Scalar& p,
                         const at::Scalar& margin, const std::optional<Tensor>& weight,
                         int64_t reduction) {
  const bool is_batch = x.dim() > 1;
  const Tensor scores = is_batch ? x : x.unsqueeze(0);
  const Tensor right = (is_batch ? target : target.reshape({1})).unsqueeze(1);
  const int64_t classes = scores.size(1);
  Tensor excess = (scores - scores.gather(1, right) + margin).clamp_min(0);
  if (p.toDouble() == 2) excess = excess.square();
  if (weight && weight->defined())
    excess = excess * weight->index_select(0, right.squeeze(1)).unsqueeze(1);
  const Tensor is_right = at::arange(classes, right.options()).eq(right);
  const Tensor losses =
      at::where(is_right, at::zeros_like(excess), excess).sum(1) / static_cast<double>(classes);
  if (reduction == at::Reduction::Mean) return losses.mean();
  if (reduction == at::Reduction::Sum) return losses.sum();
  return is_batch ? losses : losses.squeeze(0);
}

// ---- copies side by side

Tensor repeat(const Tensor& x, c10::IntArrayRef repeats) {
  check<SpecMismatch>(static_cast<int64_t>(repeats.size()) >= x.dim(), "repeat", "got ",
                      repeats.size(), " repeats of ", x.sizes(), "; expected one a dim at least.");
  Tensor result = x;
  while (result.dim() < static_cast<int64_t>(repeats.size())) result = result.unsqueeze(0);
  for (int64_t dim = 0; dim < result.dim(); ++dim) {
    const int64_t times = repeats[static_cast<size_t>(dim)];
    check<SpecMismatch>(times >= 0, "repeat", "got ", repeats, "; expected no negative numbers.");
    if (times == 0) {
      result = result.narrow(dim, 0, 0);
    } else if (times > 1) {
      result = at::cat(std::vector<Tensor>(static_cast<size_t>(times), result), dim);
    }
  }
  const bool is_copy =
      std::any_of(repeats.begin(), repeats.end(), [](int64_t times) { return times > 1; });
  return is_copy ? result.contiguous() : result.clone(at::MemoryFormat::Contiguous);
}

Tensor block_diag(at::TensorList blocks) {
  std::vector<Tensor> matrices;
  int64_t columns = 0;
  for (const Tensor& block : blocks) {
    check<SpecMismatch>(block.dim() <= 2, "block_diag", "got ", block.sizes(),
                        "; expected at most 2 dims.");
    Tensor matrix = block;
    while (matrix.dim() < 2) matrix = matrix.unsqueeze(0);
    columns += matrix.size(1);
    matrices.push_back(std::move(matrix));
  }
  int64_t before = 0;
  for (Tensor& matrix : matrices) {
    const int64_t own = matrix.size(1);
    matrix = at::constant_pad_nd(matrix, {before, columns - before - own});
    before += own;
  }
  return at::cat(matrices, 0);
}

/// Every tensor padded to `chunks` equal parts along `dim`, the parts flattened, side by side.
Tensor chunk_cat(at::TensorList tensors, int64_t dim, int64_t chunks) {
  check<SpecMismatch>(chunks > 0, "_chunk_cat", "got ", chunks, " chunks; expected at least 1.");
  std::vector<Tensor> flat;
  for (const Tensor& tensor : tensors) {
    const int64_t along = at::maybe_wrap_dim(dim, tensor.dim());
    std::vector<int64_t> pad(static_cast<size_t>(2 * (tensor.dim() - along)), 0);
    pad.back() = (chunks - tensor.size(along) % chunks) % chunks;
    auto sizes = tensor.sizes().slice(0, static_cast<size_t>(along)).vec();
    sizes.push_back(chunks);
    sizes.push_back(-1);
    flat.push_back(at::constant_pad_nd(tensor, pad).reshape(sizes));
  }
  return at::cat(flat, at::maybe_wrap_dim(dim, tensors[0].dim()) + 1);
}

// ---- masks that guard indices

/// Where the mask is false an index may point anywhere.
c10::List<std::optional<Tensor>> into_range(const Tensor& x,
                                            const c10::List<std::optional<Tensor>>& indices) {
  c10::List<std::optional<Tensor>> result;
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<Tensor> index = indices.get(i);
    const int64_t n = x.size(static_cast<int64_t>(i));
    result.push_back(index ? std::optional(index->clamp(-n, n - 1)) : std::nullopt);
  }
  return result;
}

Tensor masked_index(const Tensor& x, const Tensor& mask,
                    const c10::List<std::optional<Tensor>>& indices, const at::Scalar& fill) {
  return at::index(x, into_range(x, indices)).masked_fill(mask.logical_not(), fill);
}

Tensor masked_index_put(const Tensor& x, const Tensor& mask,
                        const c10::List<std::optional<Tensor>>& indices, const Tensor& values) {
  return at::index_put(x, into_range(x, indices), values.masked_fill(mask.logical_not(), 0), true);
}

// ---- a part of a copy written

const DeviceMesh& mesh_among(const Tensor& a, const Tensor& b) {
  return mesh_of(is_shard_tensor(a) ? a : b);
}

Tensor slice_scatter(const Tensor& x, const Tensor& values, int64_t dim,
                     std::optional<int64_t> start, std::optional<int64_t> end, int64_t step) {
  Tensor result = promote(x, mesh_among(x, values)).clone();
  result.slice(dim, start, end, step).copy_(values);
  return result;
}

Tensor select_scatter(const Tensor& x, const Tensor& values, int64_t dim, int64_t index) {
  Tensor result = promote(x, mesh_among(x, values)).clone();
  const int64_t row = index < 0 ? index + x.size(dim) : index;
  result.narrow(dim, row, 1).copy_(values.unsqueeze(dim));
  return result;
}

/// LibTorch's formula picks the gradient of the value by mask.
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value) {
  check<SpecMismatch>(value.dim() == 0 && (!value.is_complex() || x.is_complex()), "masked_fill",
                      "got a value of ", value.sizes(), " and ", value.scalar_type(), " for ",
                      x.scalar_type(), "; expected a number that fits.");
  return at::where(mask, value.to(x.scalar_type()), x);
}

}  // namespace

SHARD_PATCH(compositions) {
  namespace ops = at::_ops;
  patch.function<ops::nansum>(nansum).shards("any dim");
  patch.function<ops::count_nonzero>(count_nonzero).shards("any dim");
  patch.function<ops::count_nonzero_dim_IntList>(count_nonzero_dims).shards("any dim");
  patch.function<ops::renorm>(renorm).shards("any dim");
  patch.function<ops::_safe_softmax>(safe_softmax).shards("any dim");
  patch.function<ops::multi_margin_loss>(multi_margin_loss).shards("any dim");
  patch.function<ops::repeat>(repeat).shards("any dim");
  patch.function<ops::block_diag>(block_diag).shards("any dim");
  patch.function<ops::_chunk_cat>(chunk_cat).shards("any dim");
  patch.function<ops::_unsafe_masked_index>(masked_index).shards("any dim");
  patch.function<ops::_unsafe_masked_index_put_accumulate>(masked_index_put).shards("any dim");
  patch.function<ops::slice_scatter>(slice_scatter).shards("any dim");
  patch.function<ops::select_scatter>(select_scatter).shards("any dim");
  patch.function<ops::masked_fill_Tensor>(masked_fill).shards("any dim");
}

}  // namespace shard
