// SPDX-License-Identifier: Apache-2.0
// Convolution over a tensor sharded in space or batch, by LibTorch's own kernels on local tensors.
//
// NOTE [Two ways to a halo]
// Small shards: the halo rows are concatenated with the local tensor. Large shards: copying the
// local tensor would cost a third of the convolution, so, by linearity, the op runs on the local
// tensor as if zeros lay around it, and what the halo rows contribute to the boundary rows is
// added. Both agree to rounding, both are differentiable twice; the choice is made from global
// metadata.
#include <ATen/ops/conv_transpose1d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/conv_transpose3d.h>
#include <ATen/ops/convolution.h>
#include <shard/window_patch.h>

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
  /// On rows that already hold the padding along spatial dim `spatial`.
  Tensor without_padding(const Tensor& x, int64_t spatial) const {
    return run(x, bias, with_entry(padding, spatial, 0));
  }
  Window window(int64_t spatial) const {
    const auto i = static_cast<size_t>(spatial);
    return {weight.size(spatial + 2), stride[i], padding[i], dilation[i]};
  }
};

/// One rank's part of a convolution by linearity, along the sharded dim.
class ByLinearity {
 public:
  ByLinearity(const Convolution& convolution, const ShardedInput& input, const WindowPart& part)
      : convolution_(convolution),
        window_(convolution.window(input.spatial)),
        part_(part),
        dim_(input.dim),
        spatial_(input.spatial),
        own_{input.spec->offset(input.mesh.rank()),
             input.spec->offset(input.mesh.rank()) + input.spec->local_size(input.mesh.rank())},
        low_{std::min(part.in.begin, own_.begin), own_.begin},
        high_{own_.end, std::max(part.in.end, own_.end)} {}

  /// The local tensor must take part in the outputs, and halo rows in the first or last of them.
  bool applies() const {
    return part_.out.size() > 0 && own_.size() >= window_.reach() && part_.in.begin < own_.end &&
           part_.in.end > own_.begin &&
           (low_.size() == 0 || meeting(low_).begin == part_.out.begin) &&
           (high_.size() == 0 || meeting(high_).end == part_.out.end);
  }

  Tensor operator()(const Halo& halo) const {
    const Tensor low = contribution(halo.rows.narrow(dim_, 0, low_.size()), low_);
    const Tensor high = contribution(halo.rows.narrow(dim_, low_.size(), high_.size()), high_);
    return add_strips(of_own_rows(halo.own), low, high, dim_);
  }

 private:
  int64_t first_row(int64_t out) const { return out * window_.stride - window_.padding; }

  /// This rank's outputs whose windows meet `rows`.
  Rows meeting(const Rows& rows) const {
    const int64_t beyond =
        rows.begin + window_.padding - window_.reach();  // begin of the last window before
    const int64_t first = beyond < 0 ? 0 : beyond / window_.stride + 1;
    const int64_t last = (rows.end - 1 + window_.padding) / window_.stride;
    return {std::max(first, part_.out.begin), std::min(last + 1, part_.out.end)};
  }

  /// ATen pads alike on both sides: pad as much as the larger overhang, aligned with the stride,
  /// and drop the surplus outputs.
  Tensor of_own_rows(const Tensor& own) const {
    const int64_t left = own_.begin - first_row(part_.out.begin);  // overhang; negative: skip rows
    const int64_t right = first_row(part_.out.end - 1) + window_.reach() - own_.end;
    const int64_t overhang = std::max<int64_t>({left, right, 0});
    const int64_t pad =
        overhang + (window_.stride - (overhang - left) % window_.stride) % window_.stride;
    const Tensor y =
        convolution_.run(own, convolution_.bias, with_entry(convolution_.padding, spatial_, pad));
    const int64_t skip = (pad - left) / window_.stride;
    if (skip == 0 && y.size(dim_) == part_.out.size()) return y;
    return y.narrow(dim_, skip, part_.out.size()).contiguous(y.suggest_memory_format());
  }

  /// What `rows`, outside the own range, add to the outputs whose windows meet them.
  Tensor contribution(const Tensor& values, const Rows& rows) const {
    if (rows.size() == 0) return Tensor();
    const Rows out = meeting(rows);
    const Rows strip{first_row(out.begin), first_row(out.end - 1) + window_.reach()};
    // Rows of the strip that are not in `rows` count as zero.
    const Rows kept{std::max(rows.begin, strip.begin), std::min(rows.end, strip.end)};
    std::vector<Tensor> pieces{values.narrow(dim_, kept.begin - rows.begin, kept.size())};
    if (kept.begin > strip.begin) {
      pieces.insert(pieces.begin(), fill_rows(values, dim_, kept.begin - strip.begin));
    }
    if (strip.end > kept.end) pieces.push_back(fill_rows(values, dim_, strip.end - kept.end));
    return convolution_.run(join(pieces, dim_), Tensor(),
                            with_entry(convolution_.padding, spatial_, 0));
  }

  const Convolution& convolution_;
  Window window_;
  WindowPart part_;
  int64_t dim_, spatial_;
  Rows own_, low_, high_;  // rows of the input: this rank's, and the halo before and after them
};

bool copy_is_cheap(const ShardedInput& input) {
  const auto& partition = input.spec->partition();
  const int64_t largest = *std::max_element(partition.begin(), partition.end());
  const auto& x = input.tensor;
  const int64_t row = x.numel() / std::max<int64_t>(x.size(input.dim), 1);
  return largest * row * static_cast<int64_t>(x.element_size()) <= concatenation_limit();
}

Tensor by_linearity(const ShardedInput& input, const Convolution& convolution,
                    const Window& window) {
  const auto& owned = input.spec->partition();
  const auto parts = window_parts(window, owned);
  const auto plan = plan_halo(input.dim, owned, parts);
  const auto halo = exchange_halo(to_local(input.tensor), plan, input.mesh);
  const int64_t rank = input.mesh.rank();
  const auto& part = parts[static_cast<size_t>(rank)];
  const ByLinearity local(convolution, input, part);
  if (local.applies()) return from_window(local(halo), input, window.output_partition(owned));
  const auto rows = assembled(halo, plan, input, window, part);
  return from_rows(convolution.without_padding(rows.rows, input.spatial), input, rows);
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
  // Replicated inputs give replicated results and gradients; only sharded ones give contributions.
  const auto local =
      input.dim >= 0 ? local_weights(input.mesh, parameters) : local_copies(input.mesh, parameters);
  const Convolution op{local[0],
                       local[1],
                       expanded(kOp, stride, spatial, 1),
                       expanded(kOp, padding, spatial, 0),
                       expanded(kOp, dilation, spatial, 1),
                       groups};
  if (!input.is_cut()) {
    const auto rows = own_rows(input);
    return from_rows(op(rows.rows), input, rows);
  }
  const Window window = op.window(input.spatial);
  check_window(kOp, input, window);
  if (!copy_is_cheap(input)) return by_linearity(input, op, window);
  const auto rows = window_rows(input, window, 0);
  return from_rows(op.without_padding(rows.rows, input.spatial), input, rows);
}

}  // namespace

SHARD_PATCH(convolution) {
  patch.function<at::_ops::convolution>(convolve)
      .shards("batch", "spatial", "channels (moved to the largest spatial dim)")
      .notes("transposed: conv_transpose1d, 2d, 3d");
}

}  // namespace shard
