// SPDX-License-Identifier: Apache-2.0
// Losses. A mean over shards is the sum of the local sums over the *global* count, in value and
// gradient (a mean of local means would be wrong for uneven shards, and its gradient for any).
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/smooth_l1_loss.h>
#include <ATen/ops/soft_margin_loss.h>
#include <shard/patch.h>

namespace shard {
namespace {

using at::Tensor;

/// The arguments of an elementwise loss, lined up and local.
struct Aligned {
  std::vector<Tensor> local;  // undefined ones stay undefined
  DeviceMesh mesh;
  SpecRef spec;  // of the elementwise loss

  explicit Aligned(const std::vector<Tensor>& tensors);
  Tensor finish(const Tensor& elements_or_sum, int64_t reduction) const;
};

const Tensor& first_sharded(const std::vector<Tensor>& tensors) {
  const Tensor* any = nullptr;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || !is_shard_tensor(tensor)) continue;
    if (spec_of(tensor)->is_shard()) return tensor;
    if (!any) any = &tensor;
  }
  return *any;
}

/// Where the output's shard lies in a tensor that broadcasts to `sizes`.
Layout aligned_layout(const ShardTensorSpec& spec, const Tensor& t, c10::IntArrayRef sizes) {
  if (!spec.is_shard()) return Layout(Replicate(), {});
  const int64_t dim = spec.shard_dim() - (static_cast<int64_t>(sizes.size()) - t.dim());
  if (dim < 0 || t.size(dim) != sizes[static_cast<size_t>(spec.shard_dim())]) return {};
  return Layout(Shard(dim), spec.partition());
}

Aligned::Aligned(const std::vector<Tensor>& tensors) {
  const Tensor& anchor = first_sharded(tensors);
  mesh = mesh_of(anchor);
  auto sizes = anchor.sizes().vec();
  for (const auto& t : tensors) {
    if (t.defined()) sizes = at::infer_size(sizes, t.sizes());
  }
  const auto& own = spec_of(anchor);
  Layout out = own->is_shard() ? Layout(*own) : Layout();
  if (out.is_shard()) {
    const int64_t dim = own->shard_dim() + static_cast<int64_t>(sizes.size()) - anchor.dim();
    const bool broadcast = anchor.size(own->shard_dim()) != sizes[static_cast<size_t>(dim)];
    out = broadcast ? Layout() : out.moved_to(dim);
  }
  spec = own->with(out.placement, sizes, out.partition);
  for (const auto& t : tensors) {
    if (!t.defined()) {
      local.emplace_back();
      continue;
    }
    const Layout wanted = aligned_layout(*spec, t, sizes);
    const Tensor whole = promote(t, mesh);
    const Tensor moved =
        redistribute(whole, spec_of(whole)->with(wanted.placement, t.sizes(), wanted.partition));
    local.push_back(spec->is_shard() && wanted.is_replicate() ? to_local(moved, Partial())
                                                              : to_local(moved));
  }
}

Tensor Aligned::finish(const Tensor& elements_or_sum, int64_t reduction) const {
  if (reduction == at::Reduction::None) return from_local(elements_or_sum, mesh, spec);
  const auto scalar = spec->with(spec->is_shard() ? Partial() : Replicate(), {});
  if (reduction == at::Reduction::Sum) return from_local(elements_or_sum, mesh, scalar);
  const auto count = static_cast<double>(c10::multiply_integers(spec->global_shape()));
  return from_local(elements_or_sum / count, mesh, scalar);
}

/// What the local op computes: elements for none, else the sum.
int64_t local_reduction(int64_t reduction) {
  return reduction == at::Reduction::Mean ? static_cast<int64_t>(at::Reduction::Sum) : reduction;
}

Tensor mse_loss(const Tensor& x, const Tensor& y, int64_t reduction) {
  const Aligned in({x, y});
  return in.finish(at::mse_loss(in.local[0], in.local[1], local_reduction(reduction)), reduction);
}

Tensor l1_loss(const Tensor& x, const Tensor& y, int64_t reduction) {
  const Aligned in({x, y});
  return in.finish(at::l1_loss(in.local[0], in.local[1], local_reduction(reduction)), reduction);
}

Tensor smooth_l1_loss(const Tensor& x, const Tensor& y, int64_t reduction, double beta) {
  const Aligned in({x, y});
  return in.finish(at::smooth_l1_loss(in.local[0], in.local[1], local_reduction(reduction), beta),
                   reduction);
}

Tensor huber_loss(const Tensor& x, const Tensor& y, int64_t reduction, double delta) {
  const Aligned in({x, y});
  return in.finish(at::huber_loss(in.local[0], in.local[1], local_reduction(reduction), delta),
                   reduction);
}

Tensor soft_margin_loss(const Tensor& x, const Tensor& y, int64_t reduction) {
  const Aligned in({x, y});
  return in.finish(at::soft_margin_loss(in.local[0], in.local[1], local_reduction(reduction)),
                   reduction);
}

std::optional<Tensor> optional(const Tensor& t) {
  return t.defined() ? std::optional<Tensor>(t) : std::nullopt;
}

Tensor binary_cross_entropy(const Tensor& x, const Tensor& y, const std::optional<Tensor>& weight,
                            int64_t reduction) {
  const Aligned in({x, y, weight.value_or(Tensor())});
  return in.finish(at::binary_cross_entropy(in.local[0], in.local[1], optional(in.local[2]),
                                            local_reduction(reduction)),
                   reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& y,
                                        const std::optional<Tensor>& weight,
                                        const std::optional<Tensor>& pos_weight,
                                        int64_t reduction) {
  const Aligned in({x, y, weight.value_or(Tensor()), pos_weight.value_or(Tensor())});
  return in.finish(
      at::binary_cross_entropy_with_logits(in.local[0], in.local[1], optional(in.local[2]),
                                           optional(in.local[3]), local_reduction(reduction)),
      reduction);
}

// ---- negative log likelihood: classes on dim 1 (0 if unbatched), targets have the other dims

/// The sum of the weights of the targets that count, over all ranks. Not differentiable.
Tensor total_weight(const Tensor& target, const Tensor& weight, int64_t ignore_index,
                    const Tensor& like, const DeviceMesh& mesh, bool is_sharded) {
  const at::NoGradGuard guard;
  const Tensor counts = target.ne(ignore_index);
  Tensor total;
  if (weight.defined()) {
    total = weight.detach().take(target.where(counts, at::zeros_like(target))).mul(counts).sum();
  } else {
    total = counts.sum().to(like.scalar_type());
  }
  return is_sharded ? all_reduce(total, mesh) : total;
}

/// The layout of the scores without a cut through the classes.
/// On a mesh of several dims the first other dim: see NOTE [Choices on several mesh dims].
SpecRef whole_classes(const SpecRef& spec, int64_t classes, bool first) {
  if (!spec->is_shard() || spec->shard_dim() != classes) return spec;
  const auto sizes = spec->global_shape();
  int64_t best = -1;
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
    if (d == classes) continue;
    if (best < 0 || (!first && sizes[static_cast<size_t>(d)] > sizes[static_cast<size_t>(best)])) {
      best = d;
    }
  }
  return spec->with(best < 0 ? Replicate() : Shard(best), sizes);
}

/// Scores, targets and weights of a classification loss, lined up and local.
struct Classified {
  Tensor scores, target, weight;  // weight may be undefined
  int64_t classes;                // the class dim of the scores
  DeviceMesh mesh;
  SpecRef elements;  // of the targets and of the loss without reduction

  Classified(const Tensor& x, const Tensor& y, const std::optional<Tensor>& weight);
  Tensor optional_mean(const Tensor& loss, int64_t reduction, int64_t ignore_index) const;
};

Classified::Classified(const Tensor& x, const Tensor& y, const std::optional<Tensor>& w)
    : classes(x.dim() == 1 ? 0 : 1), mesh(mesh_of(is_shard_tensor(x) ? x : y)) {
  const Tensor all_scores = promote(x, mesh);
  // Where a shard of the targets lies in the scores, and the reverse: past the class dim.
  const auto scores_dim = [&](int64_t dim) { return dim >= classes ? dim + 1 : dim; };
  const auto target_dim = [&](int64_t dim) { return dim > classes ? dim - 1 : dim; };
  SpecRef spec = whole_classes(dual_spec(spec_of(all_scores)), classes, mesh.root().ndim() > 1);
  if (!spec->is_shard() && is_shard_tensor(y) && spec_of(y)->is_shard()) {
    spec =
        spec->with(Shard(scores_dim(spec_of(y)->shard_dim())), x.sizes(), spec_of(y)->partition());
  }
  const bool is_sharded = spec->is_shard();
  const Tensor all_targets = promote(y, mesh);
  elements = spec_of(all_targets)
                 ->with(is_sharded ? Shard(target_dim(spec->shard_dim())) : Replicate(), y.sizes(),
                        spec->partition());
  scores = to_local(redistribute(all_scores, spec));
  target = to_local(redistribute(all_targets, elements));
  if (w && w->defined()) {
    weight = is_sharded ? local_weight(mesh, *w) : local_copies(mesh, {*w})[0];
  }
}

/// Wraps `loss`: elements, or their local sum for the reductions sum and mean.
Tensor Classified::optional_mean(const Tensor& loss, int64_t reduction,
                                 int64_t ignore_index) const {
  if (reduction == at::Reduction::None) return from_local(loss, mesh, elements);
  const bool is_sharded = elements->is_shard();
  const auto scalar = elements->with(is_sharded ? Partial() : Replicate(), {});
  if (reduction == at::Reduction::Sum) return from_local(loss, mesh, scalar);
  return from_local(loss / total_weight(target, weight, ignore_index, scores, mesh, is_sharded),
                    mesh, scalar);
}

Tensor nll_loss_nd(const Tensor& x, const Tensor& target, const std::optional<Tensor>& weight,
                   int64_t reduction, int64_t ignore_index) {
  const Classified in(x, target, weight);
  const Tensor loss = at::nll_loss_nd(in.scores, in.target, optional(in.weight),
                                      local_reduction(reduction), ignore_index);
  return in.optional_mean(loss, reduction, ignore_index);
}

/// `terms` times the weight of their class.
Tensor weighted(const Tensor& terms, const Tensor& weight, int64_t classes) {
  if (!weight.defined()) return terms;
  std::vector<int64_t> sizes(static_cast<size_t>(terms.dim()), 1);
  sizes[static_cast<size_t>(classes)] = weight.numel();
  return terms * weight.view(sizes);
}

/// The part of label smoothing: every class counts, ignored targets do not.
Tensor smooth_loss(const Tensor& log_probabilities, const Tensor& target,
                   const std::optional<Tensor>& weight, int64_t reduction, int64_t ignore_index) {
  const Classified in(log_probabilities, target, weight);
  const Tensor terms = weighted(in.scores, in.weight, in.classes);
  Tensor loss = -terms.sum(in.classes).masked_fill(in.target.eq(ignore_index), 0);
  if (reduction != at::Reduction::None) loss = loss.sum();
  return in.optional_mean(loss, reduction, ignore_index);
}

/// Targets that are probabilities: of the sizes of the scores.
Tensor soft_cross_entropy(const Tensor& log_probabilities, const Tensor& target,
                          const std::optional<Tensor>& weight, int64_t reduction,
                          double label_smoothing) {
  const int64_t classes = log_probabilities.dim() == 1 ? 0 : 1;
  const int64_t n = log_probabilities.size(classes);
  const Tensor probabilities = label_smoothing > 0 ? target * (1 - label_smoothing) +
                                                         label_smoothing / static_cast<double>(n)
                                                   : target;
  const Tensor terms =
      weighted(log_probabilities * probabilities, weight.value_or(Tensor()), classes);
  if (reduction == at::Reduction::None) return -terms.sum(classes);
  const Tensor sum = -terms.sum();
  if (reduction == at::Reduction::Sum) return sum;
  return sum / (static_cast<double>(log_probabilities.numel()) / static_cast<double>(n));
}

Tensor cross_entropy_loss(const Tensor& x, const Tensor& target,
                          const std::optional<Tensor>& weight, int64_t reduction,
                          int64_t ignore_index, double label_smoothing) {
  const int64_t classes = x.dim() == 1 ? 0 : 1;
  const bool is_soft = x.sizes() == target.sizes();
  check<SpecMismatch>(!is_soft || (at::isFloatingType(target.scalar_type()) && ignore_index < 0),
                      "cross_entropy", "got targets of the scores' sizes ", x.sizes(), ", dtype ",
                      target.scalar_type(), ", ignore_index ", ignore_index,
                      "; expected probabilities (floating point) and no ignore_index, or class "
                      "indices without the class dim.");
  check<SpecMismatch>(label_smoothing >= 0 && label_smoothing <= 1, "cross_entropy",
                      "label_smoothing: got ", label_smoothing, "; expected a value in [0, 1].");
  const Tensor log_probabilities = at::log_softmax(x, classes);
  if (is_soft) {
    return soft_cross_entropy(log_probabilities, target, weight, reduction, label_smoothing);
  }
  const Tensor hard = at::nll_loss_nd(log_probabilities, target, weight, reduction, ignore_index);
  if (label_smoothing == 0) return hard;
  const Tensor smooth = smooth_loss(log_probabilities, target, weight, reduction, ignore_index);
  return hard * (1 - label_smoothing) +
         smooth * (label_smoothing / static_cast<double>(x.size(classes)));
}

}  // namespace

SHARD_PATCH(losses) {
  patch.function<at::_ops::mse_loss>(mse_loss).shards("any dim");
  patch.function<at::_ops::l1_loss>(l1_loss).shards("any dim");
  patch.function<at::_ops::smooth_l1_loss>(smooth_l1_loss).shards("any dim");
  patch.function<at::_ops::huber_loss>(huber_loss).shards("any dim");
  patch.function<at::_ops::soft_margin_loss>(soft_margin_loss).shards("any dim");
  patch.function<at::_ops::binary_cross_entropy>(binary_cross_entropy).shards("any dim");
  patch.function<at::_ops::binary_cross_entropy_with_logits>(binary_cross_entropy_with_logits)
      .shards("any dim");
  patch.function<at::_ops::nll_loss_nd>(nll_loss_nd)
      .shards("any dim")
      .notes("cut along the classes: moves to another dim");
  patch.function<at::_ops::cross_entropy_loss>(cross_entropy_loss)
      .shards("any dim")
      .notes("log_softmax and nll_loss");
}

}  // namespace shard
