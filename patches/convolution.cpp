// SPDX-License-Identifier: Apache-2.0
// Convolution over a tensor sharded in space or batch, by LibTorch's own kernels on local tensors.
//
// NOTE [Two ways to a halo]
// Small shards: the halo rows are concatenated with the local tensor. Large shards: copying the
// local tensor would cost a third of the convolution, so, by linearity, the op runs on the local
// tensor as if zeros lay around it, and what the halo rows contribute to the boundary rows is
// added. Both agree to rounding, both are differentiable twice; the choice is made from global
// metadata. Over several cut dims the strips are nested, as the shells of a BoxHalo are.
#include <ATen/ops/conv_transpose1d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/conv_transpose3d.h>
#include <ATen/ops/convolution.h>
#include <shard/box_patch.h>

#include <algorithm>

namespace shard {
namespace {

using at::Tensor;

constexpr const char* kOp = "aten::convolution";

/// The arguments of the op on local tensors.
struct Convolution {
  Tensor weight;
  Tensor bias;  // may be undefined
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups;

  Tensor operator()(const Tensor& x) const { return run(x, bias, padding); }
  Tensor run(const Tensor& x, const Tensor& bias, c10::IntArrayRef padding) const {
    return at::convolution(x, weight, bias.defined() ? std::optional<Tensor>(bias) : std::nullopt,
                           stride, padding, dilation, false, std::vector<int64_t>(stride.size(), 0),
                           groups);
  }
  Window window(size_t spatial) const {
    return {weight.size(static_cast<int64_t>(spatial) + 2), stride[spatial], padding[spatial],
            dilation[spatial]};
  }
};

/// One cut dim of a rank's part of a convolution by linearity.
struct Axis {
  int64_t dim;
  size_t entry;  ///< among the spatial dims
  Window window;
  WindowPart part;
  Rows own, low, high;  ///< of the input: this rank's, and the halo before and after them

  Axis(const BoxInput& input, const Cut& cut, const Window& window, const WindowPart& part)
      : dim(cut.dim),
        entry(input.entry(cut)),
        window(window),
        part(part),
        own(input.own(cut)),
        low{std::min(part.in.begin, own.begin), own.begin},
        high{own.end, std::max(part.in.end, own.end)} {}

  /// The local tensor must take part in the outputs, and halo rows in the first or last of them.
  bool is_linear() const {
    return part.out.size() > 0 && own.size() >= window.reach() && part.in.begin < own.end &&
           part.in.end > own.begin && (low.size() == 0 || meeting(low).begin == part.out.begin) &&
           (high.size() == 0 || meeting(high).end == part.out.end);
  }
  int64_t first_row(int64_t out) const { return out * window.stride - window.padding; }
  /// This rank's outputs whose windows meet `rows`.
  Rows meeting(const Rows& rows) const {
    const int64_t beyond =
        rows.begin + window.padding - window.reach();  // begin of the last window before
    const int64_t first = beyond < 0 ? 0 : beyond / window.stride + 1;
    const int64_t last = (rows.end - 1 + window.padding) / window.stride;
    return {std::max(first, part.out.begin), std::min(last + 1, part.out.end)};
  }
  int64_t overhang() const { return own.begin - first_row(part.out.begin); }  // negative: skip rows
  /// ATen pads alike on both sides: as much as the larger overhang, aligned with the stride;
  /// surplus outputs are skipped.
  int64_t padding() const {
    const int64_t right = first_row(part.out.end - 1) + window.reach() - own.end;
    const int64_t larger = std::max<int64_t>({overhang(), right, 0});
    return larger + (window.stride - (larger - overhang()) % window.stride) % window.stride;
  }
  int64_t skipped() const { return (padding() - overhang()) / window.stride; }

  /// Around `values`, the input rows `rows` outside the own range, zeros up to all rows of the
  /// windows that they meet.
  Tensor strip(const Tensor& values, const Rows& rows) const {
    const Rows out = meeting(rows);
    const Rows all{first_row(out.begin), first_row(out.end - 1) + window.reach()};
    const Rows kept{std::max(rows.begin, all.begin), std::min(rows.end, all.end)};
    std::vector<Tensor> pieces{values.narrow(dim, kept.begin - rows.begin, kept.size())};
    if (kept.begin > all.begin)
      pieces.insert(pieces.begin(), fill_rows(values, dim, kept.begin - all.begin));
    if (all.end > kept.end) pieces.push_back(fill_rows(values, dim, all.end - kept.end));
    return join(pieces, dim);
  }
};

/// A rank's part of a convolution by linearity.
class ByLinearity {
 public:
  ByLinearity(const Convolution& convolution, const BoxInput& input,
              const std::vector<CutParts>& cuts)
      : convolution_(convolution), input_(input) {
    for (size_t i = 0; i < cuts.size(); ++i) {
      const Cut& cut = input.cuts()[i];
      const auto place = static_cast<size_t>(input.place(cut));
      axes_.emplace_back(input, cut, convolution.window(input.entry(cut)), cuts[i].parts[place]);
      parts_.push_back(axes_.back().part);
    }
  }

  bool applies() const {
    return input_.empty_dims().empty() &&
           std::all_of(axes_.begin(), axes_.end(),
                       [](const Axis& axis) { return axis.is_linear(); });
  }

  Tensor operator()(const BoxHalo& halo, const BoxPlan& plan) const {
    Tensor y = convolve(halo.own, convolution_.bias, axes_.size());
    if (!y.is_contiguous(y.suggest_memory_format())) y = y.contiguous(y.suggest_memory_format());
    for (size_t i = 0; i < axes_.size(); ++i) y = add_strips_of(i, y, halo.shells[i], plan);
    return y;
  }

 private:
  /// As if zeros lay around `x` along the first `own_axes` cut dims; along the others it has all
  /// that the windows reach.
  Tensor convolve(const Tensor& x, const Tensor& bias, size_t own_axes) const {
    auto padding = input_.with_entries(convolution_.padding, 0);
    for (size_t i = 0; i < own_axes; ++i) padding[axes_[i].entry] = axes_[i].padding();
    Tensor y = convolution_.run(x, bias, padding);
    for (size_t i = 0; i < own_axes; ++i) {
      const Axis& axis = axes_[i];
      if (axis.skipped() == 0 && y.size(axis.dim) == axis.part.out.size()) continue;
      y = y.narrow(axis.dim, axis.skipped(), axis.part.out.size());
    }
    return y;
  }

  /// What the rows of a shell add to the outputs whose windows meet them.
  Tensor add_strips_of(size_t i, const Tensor& y, Tensor shell, const BoxPlan& plan) const {
    const Axis& axis = axes_[i];
    if (axis.low.size() + axis.high.size() == 0) return y;
    for (size_t later = i + 1; later < axes_.size(); ++later) {
      shell = input_.arrange(shell, later, plan, padded_by(plan, parts_, 0));
    }
    const auto contribution = [&](int64_t begin, const Rows& rows) {
      if (rows.size() == 0) return Tensor();
      return convolve(axis.strip(shell.narrow(axis.dim, begin, rows.size()), rows), Tensor(), i);
    };
    return add_strips(y, contribution(0, axis.low), contribution(axis.low.size(), axis.high),
                      axis.dim);
  }

  const Convolution& convolution_;
  const BoxInput& input_;
  std::vector<Axis> axes_;
  std::vector<WindowPart> parts_;
};

/// Of the largest local tensor that any rank may have.
bool copy_is_cheap(const BoxInput& input, const Tensor& x) {
  int64_t bytes = x.numel() * static_cast<int64_t>(x.element_size());
  for (const Cut& cut : input.cuts()) {
    const int64_t largest = *std::max_element(cut.owned.begin(), cut.owned.end());
    bytes = bytes / std::max<int64_t>(input.size(cut), 1) * largest;
  }
  return bytes <= concatenation_limit();
}

Tensor convolve_box(const BoxInput& input, const Convolution& op, const Tensor& x) {
  std::vector<CutParts> cuts;
  for (const Cut& cut : input.cuts()) {
    const Window window = op.window(input.entry(cut));
    check_window(kOp, cut.dim, input.size(cut), window);
    cuts.push_back(window_cut(window, cut));
  }
  const auto plan = input.plan(cuts);
  const auto halo = input.exchange(plan);
  const ByLinearity local(op, input, cuts);
  if (!copy_is_cheap(input, x) && local.applies()) {
    return input.wrapped(local(halo, plan), cuts);
  }
  const auto box = input.assemble(halo, plan, cuts);
  return input.wrapped(op.run(box.rows, op.bias, input.with_entries(op.padding, 0)), box);
}

/// The ops of patches/transposed_convolution.cpp.
Tensor convolve_transposed(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                           at::IntArrayRef stride, at::IntArrayRef padding,
                           at::IntArrayRef dilation, at::IntArrayRef output_padding,
                           int64_t groups) {
  switch (weight.dim()) {
    case 3:
      return at::conv_transpose1d(x, weight, bias, stride, padding, output_padding, groups,
                                  dilation);
    case 4:
      return at::conv_transpose2d(x, weight, bias, stride, padding, output_padding, groups,
                                  dilation);
    case 5:
      return at::conv_transpose3d(x, weight, bias, stride, padding, output_padding, groups,
                                  dilation);
    default:
      raise<SpecMismatch>(kOp, "got a weight of ", weight.sizes(),
                          "; expected one to three spatial dims. Correct the weight.");
  }
}

Tensor convolve(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  if (transposed)
    return convolve_transposed(x, weight, bias, stride, padding, dilation, output_padding, groups);
  if (!is_shard_tensor(x)) {  // only a weight is sharded: use it whole
    const auto& mesh = mesh_of(is_shard_tensor(weight) ? weight : *bias);
    return convolve(promote(x, mesh), weight, bias, stride, padding, dilation, transposed, {},
                    groups);
  }
  const int64_t spatial = weight.dim() - 2;
  const auto input = window_input(kOp, x, spatial, /*channels_are_local=*/false);
  const std::vector<Tensor> parameters{weight, bias.value_or(Tensor())};
  const auto with = [&](const std::vector<Tensor>& local) {
    return Convolution{local[0],
                       local[1],
                       expanded(kOp, stride, spatial, 1),
                       expanded(kOp, padding, spatial, 0),
                       expanded(kOp, dilation, spatial, 1),
                       groups};
  };
  if (input.is_cut()) {
    const BoxInput box(input);
    return convolve_box(box, with(box.weights(parameters)), input.tensor);
  }
  // Replicated inputs give replicated results and gradients; only sharded ones give contributions.
  const auto op = with(input.dim >= 0 ? local_weights(input.mesh, parameters)
                                      : local_copies(input.mesh, parameters));
  const auto rows = own_rows(input);
  return from_rows(op(rows.rows), input, rows);
}

}  // namespace

SHARD_PATCH(convolution) {
  patch.function<at::_ops::convolution>(convolve)
      .shards("batch", "spatial", "channels (moved to the largest other dim)")
      .notes("transposed: conv_transpose1d, 2d, 3d");
}

}  // namespace shard
