// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/div.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/where.h>
#include <shard/bottom.h>
#include <shard/count_rows.h>
#include <shard/error.h>
#include <shard/window_patch.h>

#include <algorithm>
#include <atomic>

namespace shard {
namespace {

using at::Tensor;

std::atomic<int64_t> concatenation_bytes{1 << 20};

/// Without pending sums at the levels of a mesh of several dims that are below: made-up rows have
/// none, and all places must lie alike.
Tensor with_values(const Tensor& rows) {
  if (!is_shard_tensor(rows)) return rows;
  const Tensor reduced = redistribute(rows, dual_spec(spec_of(rows)));
  return from_local(with_values(to_local(reduced)), mesh_of(reduced), spec_of(reduced));
}

}  // namespace

ShardedInput sharded_input(const Tensor& x) {
  ShardedInput input{x, mesh_of(x), spec_of(x)};
  if (input.spec->is_partial()) {
    input.tensor = redistribute(x, input.spec->replicated());
    input.spec = spec_of(input.tensor);
  }
  input.dim = input.spec->shard_dim();
  return input;
}

ShardedInput window_input(const std::string& op, const Tensor& x, int64_t spatial_dims,
                          bool channels_are_local) {
  const int64_t first_spatial = x.dim() - spatial_dims;
  check<SpecMismatch>(
      first_spatial == 1 || first_spatial == 2, op, "got an input of ", x.sizes(), "; expected ",
      spatial_dims + 1, " or ", spatial_dims + 2,
      " dims (batch, channels, space). Add or remove dims with unsqueeze or flatten.");
  auto input = sharded_input(x);
  if (!channels_are_local) input = sharded_input(with_whole_dim(input.tensor, first_spatial - 1));
  if (input.dim >= first_spatial) input.spatial = input.dim - first_spatial;
  return input;
}

std::vector<int64_t> expanded(const std::string& op, c10::IntArrayRef list, int64_t spatial_dims,
                              int64_t fallback) {
  const auto dims = static_cast<size_t>(spatial_dims);
  check<SpecMismatch>(list.size() <= 1 || list.size() == dims, op, "got the list ", list,
                      "; expected one value or ", dims,
                      " of them. Pass one value per spatial dim.");
  if (list.size() == dims) return list.vec();
  return std::vector<int64_t>(dims, list.empty() ? fallback : list[0]);
}

std::vector<int64_t> with_entry(std::vector<int64_t> list, int64_t index, int64_t value) {
  list[static_cast<size_t>(index)] = value;
  return list;
}

void check_window(const std::string& op, int64_t dim, int64_t n, const Window& window) {
  check<SpecMismatch>(
      window.kernel > 0 && window.stride > 0 && window.dilation > 0 && window.padding >= 0, op,
      "got kernel ", window.kernel, ", stride ", window.stride, ", dilation ", window.dilation,
      ", padding ", window.padding, " along dim ", dim,
      "; expected positive values and a padding that is not negative. Correct the arguments.");
  check<SpecMismatch>(window.output_size(n) > 0, op, "got ", n, " rows along dim ", dim,
                      " with padding ", window.padding, "; expected at least ",
                      window.reach() - 2 * window.padding, " (kernel ", window.kernel,
                      ", dilation ", window.dilation, "). Use a smaller kernel or more padding.");
}

LocalRows own_rows(const ShardedInput& input) {
  LocalRows result{to_local(input.tensor), input.spec->partition(), {}};
  if (input.dim < 0) return result;
  const int64_t rank = input.mesh.rank();
  result.first = input.spec->offset(rank);
  result.out = {result.first, result.first + input.spec->local_size(rank)};
  result.is_dummy = result.out.size() == 0 && input.mesh.size() > 1;
  if (result.is_dummy)
    result.rows = join({result.rows, fill_rows(result.rows, input.dim, 1)}, input.dim);
  return result;
}

LocalRows window_rows(const ShardedInput& input, const Window& window, const at::Scalar& fill) {
  const auto& owned = input.spec->partition();
  const auto parts = window_parts(window, owned);
  const auto plan = plan_halo(input.dim, owned, parts);
  const auto halo = exchange_halo(to_local(input.tensor), plan, input.mesh);
  const auto& part = parts[static_cast<size_t>(input.mesh.rank())];
  LocalRows result{{}, window.output_partition(owned), part.out};
  result.first = part.out.begin * window.stride - window.padding;
  result.is_dummy = part.out.size() == 0;
  result.rows = assemble(halo, plan, input.mesh.rank(), part.before,
                         result.is_dummy ? window.reach() : part.after, fill);
  return result;
}

Tensor on_rows(const Tensor& rows, int64_t dim, const std::function<Tensor(const Tensor&)>& op) {
  const Tensor values = with_values(rows);
  if (dim < 0 || values.size(dim) > 0) return op(values);
  return op(join({values, fill_rows(values, dim, 1)}, dim)).narrow(dim, 0, 0);
}

Tensor from_rows(const Tensor& y, const ShardedInput& input, const LocalRows& rows) {
  if (input.dim >= 0 && input.mesh.size() == 1) return from_window(y, input, {y.size(input.dim)});
  return from_window(rows.is_dummy ? y.narrow(input.dim, 0, 0) : y, input, rows.output);
}

Tensor from_window(const Tensor& local, const ShardedInput& input, const Partition& partition) {
  Shape shape(local.sizes().begin(), local.sizes().end());
  if (input.dim >= 0) {
    shape[static_cast<size_t>(input.dim)] = total_of(partition);
  }
  return from_local(local, input.mesh, input.spec->with(input.spec->placement(), shape, partition));
}

Maxima larger(const Maxima& a, const Maxima& b) {
  const Tensor a_nan = at::isnan(a.values);
  const Tensor b_nan = at::isnan(b.values);
  const Tensor takes_b = (b.values > a.values) | (b_nan & (~a_nan | (b.indices > a.indices))) |
                         ((b.values == a.values) & (b.indices < a.indices));
  return {at::where(takes_b, b.values, a.values), at::where(takes_b, b.indices, a.indices)};
}

Tensor global_indices(const Tensor& indices, const Tensor& whole, int64_t dim, int64_t rows,
                      const std::function<Tensor(const Tensor&)>& global_row) {
  int64_t inner = 1;
  for (int64_t d = dim + 1; d < whole.dim(); ++d) inner *= whole.size(d);
  const Tensor in_rows = at::div(indices, inner, "floor");
  const Tensor row = global_row(in_rows.remainder(rows));
  return (at::div(in_rows, rows, "floor") * whole.size(dim) + row) * inner +
         indices.remainder(inner);
}

int64_t concatenation_limit() { return concatenation_bytes.load(std::memory_order_relaxed); }
void set_concatenation_limit(int64_t bytes) { concatenation_bytes = bytes; }

}  // namespace shard
