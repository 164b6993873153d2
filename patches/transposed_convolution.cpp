// SPDX-License-Identifier: Apache-2.0
// Transposed convolution over a tensor sharded in space or batch: LibTorch's own op on the input
// rows that reach this rank's output rows. at::convolution comes here too when it is transposed
// (patches/convolution.cpp).
#include <ATen/ops/conv_transpose1d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/conv_transpose3d.h>
#include <shard/box_patch.h>
#include <shard/transposed_window.h>

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
  TransposedWindow window(size_t i) const {
    return {weight.size(static_cast<int64_t>(i) + 2), stride[i], padding[i], dilation[i],
            output_padding[i]};
  }
};

/// LibTorch's own checks see local sizes and paddings.
void check_window(const char* op, int64_t dim, int64_t n, const TransposedWindow& window) {
  check<SpecMismatch>(
      window.kernel > 0 && window.stride > 0 && window.dilation > 0 && window.padding >= 0, op,
      "got kernel ", window.kernel, ", stride ", window.stride, ", dilation ", window.dilation,
      ", padding ", window.padding, " along dim ", dim,
      "; expected positive values and a padding that is not negative. Correct the arguments.");
  const int64_t bound = std::max(window.stride, window.dilation);
  check<SpecMismatch>(window.output_padding >= 0 && window.output_padding < bound, op,
                      "got output_padding ", window.output_padding, " along dim ", dim,
                      "; expected less than the stride or the dilation, ", bound,
                      ". Correct the arguments.");
  check<SpecMismatch>(n > 0 && window.output_size(n) > 0, op, "got ", n, " rows along dim ", dim,
                      ", which give ", n > 0 ? window.output_size(n) : 0,
                      " output rows; expected at least one. Use less padding.");
}

template <class Op>
Tensor spread_rows(const TransposedConvolution<Op>& op, const BoxInput& input) {
  std::vector<CutParts> cuts;
  auto padding = op.padding;
  auto output_padding = op.output_padding;
  for (const Cut& cut : input.cuts()) {
    const size_t entry = input.entry(cut);
    const auto window = op.window(entry);
    check_window(Op::name, cut.dim, input.size(cut), window);
    const auto parts = transposed_parts(window, cut.owned);
    auto& of_places = cuts.emplace_back().parts;
    for (const auto& part : parts)
      of_places.push_back({part.out, part.in, part.before, part.after});
    const auto& own = parts[static_cast<size_t>(input.place(cut))];
    padding[entry] = own.padding;
    output_padding[entry] = own.output_padding;
  }
  const auto box = input.fetch(cuts);
  return input.wrapped(op.run(box.rows, padding, output_padding), box);
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
  const auto with = [&](const std::vector<Tensor>& local) {
    return TransposedConvolution<Op>{
        local[0],
        local[1].defined() ? std::optional<Tensor>(local[1]) : std::nullopt,
        expanded(Op::name, stride, dims, 1),
        expanded(Op::name, padding, dims, 0),
        expanded(Op::name, output_padding, dims, 0),
        expanded(Op::name, dilation, dims, 1),
        groups};
  };
  if (input.is_cut()) {
    const BoxInput box(input);
    return spread_rows(with(box.weights(parameters)), box);
  }
  // Replicated inputs give replicated results and gradients; only sharded ones give contributions.
  const auto op = with(input.dim >= 0 ? local_weights(input.mesh, parameters)
                                      : local_copies(input.mesh, parameters));
  const auto rows = own_rows(input);
  return from_rows(op(rows.rows), input, rows);
}

}  // namespace

SHARD_PATCH(transposed_convolution) {
  namespace ops = at::_ops;
  const auto add = [](PatchRegistrar::Listing listing) {
    listing.shards("batch", "spatial", "channels (moved to the largest other dim)");
  };
  add(patch.function<ops::conv_transpose1d>(convolve_transposed<ops::conv_transpose1d, 1>));
  add(patch.function<ops::conv_transpose2d_input>(
      convolve_transposed<ops::conv_transpose2d_input, 2>));
  add(patch.function<ops::conv_transpose3d_input>(
      convolve_transposed<ops::conv_transpose3d_input, 3>));
}

}  // namespace shard
