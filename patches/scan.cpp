// SPDX-License-Identifier: Apache-2.0
// Running sums, products and extremes. Over a sharded dim every rank sums its own rows and adds
// what the ranks before it have in all: one message of a row a rank, and the shard stays where it
// is. For products and extremes the shard moves to another dim. These too are taken of local
// tensors, above autograd: LibTorch's gradients of them make plain zeros of the sizes that they
// see.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/cummin.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <shard/bottom.h>
#include <shard/patch.h>
#include <shard/reduced.h>

#include <tuple>

namespace shard {
namespace {

using at::Tensor;
using Dtype = std::optional<at::ScalarType>;

/// What the ranks before this one have, of which `total` is this rank's part. Chosen by where(),
/// since infinite totals times zero would be NaN.
Tensor sum_before(const Tensor& total, const DeviceMesh& mesh) {
  std::vector<int64_t> sizes(static_cast<size_t>(total.dim()) + 1, 1);
  sizes[0] = mesh.size();
  const Tensor is_mine = at::arange(mesh.size(), total.device()).eq(mesh.rank()).view(sizes);
  const Tensor mine = at::where(is_mine, total.unsqueeze(0), at::zeros({}, total.dtype()));
  return all_reduce(mine, mesh)
      .narrow(0, 0, mesh.rank())
      .sum(at::IntArrayRef{0}, /*keepdim=*/false, total.scalar_type());
}

Tensor running_sum(const Tensor& x, int64_t dim, Dtype dtype) {
  const int64_t along = at::maybe_wrap_dim(dim, x.dim());
  const Tensor value = reduced(x);
  const auto& spec = spec_of(value);
  const auto& mesh = mesh_of(value);
  const Tensor local = to_local(value);
  Tensor y = at::cumsum(local, along, dtype);
  if (mesh.size() > 1 && spec->shard_dim() == along) {
    y = y + sum_before(at::sum(local, {along}, true, dtype), mesh);
  }
  return from_local(y, mesh, spec);
}

void check_own(const char* op, const Tensor& x, const Dtype& dtype) {
  check<SpecMismatch>(!dtype || *dtype == x.scalar_type(), op, "got dtype ",
                      dtype.value_or(at::kFloat), " for a tensor of ", x.scalar_type(),
                      "; expected its own. Use the op that makes a new tensor.");
}

Tensor& running_sum_in_place(Tensor& x, int64_t dim, Dtype dtype) {
  check_own("cumsum_", x, dtype);
  return x.copy_(running_sum(x, dim, x.scalar_type()));
}

Bottom with_whole_lines(const Tensor& x, int64_t dim) {
  return Bottom(with_whole_dim(x, at::maybe_wrap_dim(dim, x.dim())));
}

Tensor running_product(const Tensor& x, int64_t dim, Dtype dtype) {
  const Bottom lines = with_whole_lines(x, dim);
  Tensor y = at::cumprod(lines.local, dim, dtype);
  // Of nothing, LibTorch's gradient has no graph, but the other ranks' has one (if there is more
  // than one row).
  if (y.numel() == 0 && y.size(dim) > 1) y = y * lines.local.to(y.scalar_type());
  return lines.wrapped(y);
}

using Extremes = std::tuple<Tensor, Tensor>;

template <Extremes (*op)(const Tensor&, int64_t)>
Extremes running_extremes(const Tensor& x, int64_t dim) {
  const Bottom lines = with_whole_lines(x, dim);
  auto [values, indices] = op(lines.local, dim);
  // Of nothing, LibTorch's gradient is the input, not the gradient that arrives.
  if (values.numel() == 0) values = lines.local.clone();
  return {lines.wrapped(values), lines.wrapped(indices)};
}

/// The gradient needs the values that are overwritten.
Tensor& running_product_in_place(Tensor& x, int64_t dim, Dtype dtype) {
  check_own("cumprod_", x, dtype);
  return x.copy_(at::cumprod(x.clone(), dim, x.scalar_type()));
}

}  // namespace

SHARD_PATCH(scan) {
  patch.function<at::_ops::cumsum>(running_sum).shards("any dim");
  patch.function<at::_ops::cumsum_>(running_sum_in_place).shards("any dim");
  const char* const moves = "along the dim itself: one all-to-all to another dim";
  patch.function<at::_ops::cumprod>(running_product).shards("any dim").notes(moves);
  patch.function<at::_ops::cumprod_>(running_product_in_place)
      .shards("any dim")
      .notes("as cumprod, then copied");
  patch.function<at::_ops::cummax>(running_extremes<&at::cummax>).shards("any dim").notes(moves);
  patch.function<at::_ops::cummin>(running_extremes<&at::cummin>).shards("any dim").notes(moves);
}

}  // namespace shard
