// SPDX-License-Identifier: Apache-2.0
// Products besides the matmul family: cross products, trilinear forms, distances between rows.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_cdist_backward.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <shard/count_rows.h>
#include <shard/patch.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace shard {
namespace {

using at::Tensor;

// ---- above autograd, made of covered ops

Tensor vdot(const Tensor& a, const Tensor& b) {
  check<SpecMismatch>(
      a.dim() == 1 && b.dim() == 1 && a.numel() == b.numel() && a.scalar_type() == b.scalar_type(),
      "vdot", "got ", a.sizes(), " of ", a.scalar_type(), " and ", b.sizes(), " of ",
      b.scalar_type(), "; expected two vectors alike.");
  return at::sum(at::mul(a.conj(), b));
}

Tensor dist(const Tensor& a, const Tensor& b, const at::Scalar& p) {
  return at::linalg_vector_norm(at::sub(a, b), p);
}

// ---- cross products

/// linalg_cross(self, other, *, dim): broadcasting, every vector by itself.
std::optional<Decision> cross(const OpCall& call) {
  const auto sizes = at::infer_size(call.tensor(0).sizes(), call.tensor(1).sizes());
  const auto ndim = static_cast<int64_t>(sizes.size());
  const int64_t along = call.dim(2, ndim);
  Layout cut;
  for (const auto& argument : call.tensors()) {
    const auto dim = static_cast<size_t>(std::max<int64_t>(argument.shard_dim(), 0));
    if (argument.is_shard() && argument.sizes()[dim] == sizes[dim] && !cut.is_shard()) {
      cut = argument.layout();
    }
  }
  if (cut.is_shard() && cut.dim() == along) cut = cut_elsewhere(call, sizes, {along});
  Decision decision;
  for (const auto& argument : call.tensors()) {
    const bool is_broadcast = cut.is_shard() && argument.sizes()[static_cast<size_t>(cut.dim())] !=
                                                    sizes[static_cast<size_t>(cut.dim())];
    decision.inputs.push_back(is_broadcast ? Layout() : cut);
  }
  decision.outputs.push_back(cut);
  return decision;
}

// ---- trilinear forms

/// _trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim): the inputs with ones at `expand`,
/// multiplied, summed over `sumdim`. A cut dim is carried to the result, or leaves it pending.
std::optional<Decision> trilinear(const OpCall& call) {
  std::vector<std::vector<int64_t>> expanded{call.integers(3), call.integers(4), call.integers(5)};
  const auto summed = call.integers(6);
  const auto has = [](const std::vector<int64_t>& dims, int64_t dim) {
    return std::find(dims.begin(), dims.end(), dim) != dims.end();
  };
  const auto own_dim = [&](size_t i, int64_t dim) {  // of input i, along dim of the product
    return dim - std::count_if(expanded[i].begin(), expanded[i].end(),
                               [dim](int64_t other) { return other < dim; });
  };
  const auto ndim = call.tensor(0).ndim() + static_cast<int64_t>(expanded[0].size());
  Layout cut;
  for (size_t i = 0; i < 3 && !cut.is_shard(); ++i) {
    for (int64_t dim = 0; dim < ndim && call.tensor(i).is_shard(); ++dim) {
      if (!has(expanded[i], dim) && own_dim(i, dim) == call.tensor(i).shard_dim()) {
        cut = call.tensor(i).layout().moved_to(dim);
      }
    }
  }
  Decision decision;
  for (size_t i = 0; i < 3; ++i) {
    decision.inputs.push_back(!cut.is_shard() || has(expanded[i], cut.dim())
                                  ? Layout()
                                  : cut.moved_to(own_dim(i, cut.dim())));
  }
  if (cut.is_shard()) {
    const auto before =
        std::count_if(summed.begin(), summed.end(), [&](int64_t dim) { return dim < cut.dim(); });
    cut = has(summed, cut.dim()) ? Layout(Partial(), {}) : cut.moved_to(cut.dim() - before);
  }
  decision.outputs.push_back(cut);
  return decision;
}

// ---- distances of all pairs of rows: (..., P, M) and (..., R, M) -> (..., P, R)

/// Sizes with ones in front: batches broadcast.
Shape broadcast_to(const TensorArgument& x, int64_t ndim) {
  Shape sizes(static_cast<size_t>(ndim - x.ndim()), 1);
  sizes.append(x.sizes().begin(), x.sizes().end());
  return sizes;
}
/// How an argument lies when the distances, or their rows, are cut so: whole where it is repeated.
Layout layout_of(const TensorArgument& x, const Layout& cut, int64_t ndim) {
  if (!cut.is_shard()) return cut;
  const int64_t dim = cut.dim() - (ndim - x.ndim());
  const bool is_cut = dim >= 0 && x.sizes()[static_cast<size_t>(dim)] == total_of(cut.partition);
  return is_cut ? cut.moved_to(dim) : Layout();
}

/// _cdist_forward(x1, x2, p, compute_mode), _euclidean_dist(x1, x2)
std::optional<Decision> cdist(const OpCall& call) {
  const auto& a = call.tensor(0);
  const auto& b = call.tensor(1);
  const int64_t ndim = std::max(a.ndim(), b.ndim());
  const Shape a_sizes = broadcast_to(a, ndim);
  const Shape b_sizes = broadcast_to(b, ndim);
  Decision decision;
  decision.inputs.resize(2);
  decision.outputs.resize(1);
  Layout cut = a.is_shard() ? a.layout() : b.is_shard() ? b.layout() : Layout();
  if (!cut.is_shard()) return decision;
  cut = cut.moved_to(cut.dim() + ndim - (a.is_shard() ? a : b).ndim());
  std::vector<int64_t> whole_dims(static_cast<size_t>(ndim), ndim - 1);
  std::iota(whole_dims.begin(), whole_dims.end() - 2, 0);
  if (!a.is_shard() && cut.dim() == ndim - 2) {  // the columns of the result
    decision.inputs[1] = layout_of(b, cut, ndim);
    decision.outputs[0] = cut.moved_to(ndim - 1);
    return decision;
  }
  const auto is_repeated = [&](int64_t dim) {
    return a_sizes[static_cast<size_t>(dim)] != b_sizes[static_cast<size_t>(dim)] &&
           total_of(cut.partition) == 1;
  };
  if (cut.dim() == ndim - 1 || (cut.dim() < ndim - 2 && is_repeated(cut.dim()))) {
    cut = cut_elsewhere(call, a_sizes, whole_dims);  // to the rows of the first
  }
  decision.inputs[0] = layout_of(a, cut, ndim);
  decision.outputs[0] = cut;
  if (!cut.is_shard() || cut.dim() == ndim - 2) return decision;
  decision.inputs[1] = layout_of(b, cut, ndim);
  return decision;
}

/// With the batch of the distances, also where there are no rows: LibTorch then leaves it as x1 has
/// it, on such ranks only.
Tensor rows_gradient(const Tensor& gradient, const Tensor& x1, const Tensor& x2, double p,
                     const Tensor& distances) {
  const auto batch = static_cast<size_t>(gradient.dim()) - 2;
  auto sizes = gradient.sizes().slice(0, batch).vec();
  const auto rows = x1.sizes().slice(static_cast<size_t>(x1.dim()) - 2);
  sizes.insert(sizes.end(), rows.begin(), rows.end());
  return at::_cdist_backward(gradient, x1, x2, p, distances).expand(sizes);
}

/// _cdist_backward(grad, x1, x2, p, cdist): of x1, a sum over the rows of x2.
std::optional<Decision> cdist_backward(const OpCall& call) {
  const int64_t ndim = call.tensor(0).ndim();
  const auto& distances = call.tensor(3);
  Layout cut = distances.is_shard() ? distances.layout() : Layout();
  Decision decision;
  for (const auto& x : call.tensors()) {
    decision.inputs.push_back(layout_of(x, cut, ndim));
  }
  decision.outputs.push_back(cut);
  if (cut.is_shard() && cut.dim() == ndim - 2) decision.inputs[2] = Layout();
  if (cut.is_shard() && cut.dim() == ndim - 1) {
    decision.inputs[1] = Layout();
    decision.inputs[2] = layout_of(call.tensor(2), cut.moved_to(ndim - 2), ndim);
    decision.outputs[0] = Layout(Partial(), {});
  }
  decision.local = [](c10::ArrayRef<c10::IValue> arguments) {
    return std::vector<c10::IValue>{rows_gradient(arguments[0].toTensor(), arguments[1].toTensor(),
                                                  arguments[2].toTensor(), arguments[3].toDouble(),
                                                  arguments[4].toTensor())};
  };
  return decision;
}

}  // namespace

SHARD_PATCH(products) {
  patch.function<at::_ops::vdot>(vdot).shards("any dim");
  patch.function<at::_ops::dist>(dist).shards("any dim");
  patch.rule("aten::linalg_cross", cross).shards("any dim").needs_values();
  patch.rule("aten::_trilinear", trilinear).shards("any dim").needs_values();
  patch.rule("aten::_cdist_forward", cdist).shards("any dim").needs_values();
  patch.rule("aten::_euclidean_dist", cdist).shards("any dim").needs_values();
  patch.rule("aten::_cdist_backward", cdist_backward).shards("any dim").needs_values();
}

}  // namespace shard
