// SPDX-License-Identifier: Apache-2.0
// Transposed convolution over a tensor sharded in space or batch: LibTorch's own op on the input
// rows that reach this rank's output rows. at::convolution comes here too when it is transposed
// (patches/convolution.cpp).
#include <ATen/ops/conv_transpose1d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/conv_transpose3d.h>
#include <shard/transposed_window.h>
#include <shard/window_patch.h>

#include <algorithm>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;

/// The arguments of the op on local tensors.
template <class Op>
struct TransposedConvolution {
  Tensor weight;
  std::optional<Tensor> bias;
  std::vector<int64_t> stride, padding, output_padding, dilation;
  int64_t groups;

  Tensor operator()(const Tensor& x) const { return run(x, padding, output_padding); }
  Tensor run(const Tensor& x, IntArrayRef paddings, IntArrayRef output_paddings) const {
    return Op::call(x, weight, bias, c10::fromIntArrayRefSlow(stride),
                    c10::fromIntArrayRefSlow(paddings), c10::fromIntArrayRefSlow(output_paddings),
                    groups, c10::fromIntArrayRefSlow(dilation));
  }
  TransposedWindow window(int64_t spatial) const {
    const auto i = static_cast<size_t>(spatial);
    return {weight.size(spatial + 2), stride[i], padding[i], dilation[i], output_padding[i]};
  }
};

/// LibTorch's own checks see local sizes and paddings.
void check_window(const char* op, const ShardedInput& input, const TransposedWindow& window) {
  check<SpecMismatch>(
      window.kernel > 0 && window.stride > 0 && window.dilation > 0 && window.padding >= 0, op,
      "got kernel ", window.kernel, ", stride ", window.stride, ", dilation ", window.dilation,
      ", padding ", window.padding, " along dim ", input.dim,
      "; expected positive values and a padding that is not negative. Correct the arguments.");
  const int64_t bound = std::max(window.stride, window.dilation);
  check<SpecMismatch>(window.output_padding >= 0 && window.output_padding < bound, op,
                      "got output_padding ", window.output_padding, " along dim ", input.dim,
                      "; expected less than the stride or the dilation, ", bound,
                      ". Correct the arguments.");
  const int64_t n = input.spec->global_shape()[static_cast<size_t>(input.dim)];
  check<SpecMismatch>(n > 0 && window.output_size(n) > 0, op, "got ", n, " rows along dim ",
                      input.dim, ", which give ", n > 0 ? window.output_size(n) : 0,
                      " output rows; expected at least one. Use less padding.");
}

template <class Op>
Tensor spread_rows(const TransposedConvolution<Op>& op, const ShardedInput& input) {
  const auto window = op.window(input.spatial);
  check_window(Op::name, input, window);
  const auto& owned = input.spec->partition();
  const auto parts = transposed_parts(window, owned);
  std::vector<std::vector<Rows>> wanted;
  for (const auto& part : parts) wanted.push_back({part.in});
  const auto plan = make_halo_plan(input.dim, owned, wanted);
  const auto halo = exchange_halo(to_local(input.tensor), plan, input.mesh);
  const int64_t rank = input.mesh.rank();
  const auto& part = parts[static_cast<size_t>(rank)];
  LocalRows rows{{}, window.output_partition(owned), part.out};
  rows.is_dummy = part.out.size() == 0;
  rows.rows = assemble(halo, plan, rank, part.before, rows.is_dummy ? 1 : part.after);
  const Tensor y = op.run(rows.rows, with_entry(op.padding, input.spatial, part.padding),
                          with_entry(op.output_padding, input.spatial, part.output_padding));
  return from_rows(y, input, rows);
}

template <class Op, int64_t dims>
Tensor convolve_transposed(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                           IntArrayRef stride, IntArrayRef padding, IntArrayRef output_padding,
                           int64_t groups, IntArrayRef dilation) {
  if (!is_shard_tensor(x)) {  // only a weight is sharded: use it whole
    const auto& mesh = mesh_of(is_shard_tensor(weight) ? weight : *bias);
    return convolve_transposed<Op, dims>(promote(x, mesh), weight, bias, stride, padding,
                                         output_padding, groups, dilation);
  }
  check<SpecMismatch>(weight.dim() == dims + 2, Op::name, "got a weight of ", weight.sizes(),
                      "; expected ", dims + 2, " dims. Use the op of the weight's dims.");
  const auto input = window_input(Op::name, x, dims, /*channels_are_local=*/false);
  const std::vector<Tensor> parameters{weight, bias.value_or(Tensor())};
  // Replicated inputs give replicated results and gradients; only sharded ones give contributions.
  const auto local =
      input.dim >= 0 ? local_weights(input.mesh, parameters) : local_copies(input.mesh, parameters);
  const TransposedConvolution<Op> op{
      local[0],
      local[1].defined() ? std::optional<Tensor>(local[1]) : std::nullopt,
      expanded(Op::name, stride, dims, 1),
      expanded(Op::name, padding, dims, 0),
      expanded(Op::name, output_padding, dims, 0),
      expanded(Op::name, dilation, dims, 1),
      groups};
  if (input.is_cut()) return spread_rows(op, input);
  const auto rows = own_rows(input);
  return from_rows(op(rows.rows), input, rows);
}

}  // namespace

SHARD_PATCH(transposed_convolution) {
  namespace ops = at::_ops;
  const auto add = [](PatchRegistrar::Listing listing) {
    listing.shards("batch", "spatial", "channels (moved to the largest spatial dim)");
  };
  add(patch.function<ops::conv_transpose1d>(convolve_transposed<ops::conv_transpose1d, 1>));
  add(patch.function<ops::conv_transpose2d_input>(
      convolve_transposed<ops::conv_transpose2d_input, 2>));
  add(patch.function<ops::conv_transpose3d_input>(
      convolve_transposed<ops::conv_transpose3d_input, 3>));
}

}  // namespace shard
