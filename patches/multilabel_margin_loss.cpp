// SPDX-License-Identifier: Apache-2.0
// The multi-label margin loss compares all classes of a sample with each other, so a cut of the
// classes moves to the samples; a single sample becomes whole on every rank.
#include <ATen/core/Reduction.h>
#include <ATen/ops/multilabel_margin_loss_forward.h>
#include <shard/patch.h>

#include <tuple>

namespace shard {
namespace {

using at::Tensor;
using Result = std::tuple<Tensor, Tensor>;

/// (samples, classes), or the classes of one sample.
Result local_loss(const Tensor& x, const Tensor& target, int64_t reduction) {
  if (x.dim() == 2 && x.size(0) == 0) {  // refused by LibTorch
    return {reduction == at::Reduction::None ? x.sum(1) : x.sum(), x.detach().clone()};
  }
  return at::multilabel_margin_loss_forward(x, target, reduction);
}

Result multilabel_margin_loss(const Tensor& x, const Tensor& target, int64_t reduction) {
  const auto& mesh = mesh_of(is_shard_tensor(x) ? x : target);
  check<SpecMismatch>(x.dim() <= 2 && x.sizes() == target.sizes(), "aten::multilabel_margin_loss",
                      "got scores of ", x.sizes(), " and targets of ", target.sizes(),
                      "; expected both (samples, classes) or (classes). Correct the sizes.");
  const Tensor scores = promote(x, mesh);
  const Tensor labels = promote(target, mesh);
  SpecRef spec = dual_spec(spec_of(spec_of(scores)->is_shard() ? scores : labels));
  if (spec->is_shard() && (x.dim() != 2 || spec->shard_dim() != 0)) {
    spec = spec->with(x.dim() == 2 ? Shard(0) : Replicate(), x.sizes());
  }
  const bool is_mean = reduction == at::Reduction::Mean;
  const auto [loss, is_target] =
      local_loss(to_local(redistribute(scores, spec)), to_local(redistribute(labels, spec)),
                 is_mean ? static_cast<int64_t>(at::Reduction::Sum) : reduction);
  const Tensor flags = from_local(is_target, mesh, spec);
  if (reduction == at::Reduction::None) {
    const Shape samples(x.sizes().slice(0, x.dim() == 2 ? 1 : 0));
    return {from_local(loss, mesh, spec->with(spec->placement(), samples, spec->partition())),
            flags};
  }
  const auto count = static_cast<double>(x.dim() == 2 ? x.size(0) : 1);
  return {from_local(is_mean ? loss / count : loss, mesh,
                     spec->with(spec->is_shard() ? Partial() : Replicate(), {})),
          flags};
}

}  // namespace

SHARD_PATCH(multilabel_margin_loss) {
  patch.function<at::_ops::multilabel_margin_loss_forward>(multilabel_margin_loss)
      .shards("any dim")
      .notes("a cut of the classes moves to the samples");
}

}  // namespace shard
