// SPDX-License-Identifier: Apache-2.0
// Batch normalization. The statistics of a channel are those of all elements on all ranks, whatever
// is cut; where channels are cut, every rank has those of its own, and only running statistics
// travel, so that they are equal everywhere. With running statistics it is elementwise.
#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/var_mean.h>
#include <shard/exchange.h>
#include <shard/normalization_patch.h>

namespace shard {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

OptionalTensor optional(const Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; }

struct Arguments {
  Tensor weight, bias, running_mean, running_var;  // may be undefined
  bool training;
  double momentum, eps;

  bool uses_batch() const { return training || !running_mean.defined(); }
  bool updates_running() const { return training && running_mean.defined(); }
  Tensor run(const Tensor& x) const {
    return at::batch_norm(x, optional(weight), optional(bias), optional(running_mean),
                          optional(running_var), training, momentum, eps, false);
  }
  Arguments with(const std::vector<Tensor>& parameters) const {
    Arguments result = *this;
    result.weight = parameters[0];
    result.bias = parameters[1];
    return result;
  }
};

void check_arguments(const Tensor& x, const Arguments& arguments) {
  check<SpecMismatch>(x.dim() >= 2, "batch_norm", "got an input of ", x.sizes(),
                      "; expected at least 2 dims (batch, channels, ...).");
  for (const auto* t :
       {&arguments.weight, &arguments.bias, &arguments.running_mean, &arguments.running_var}) {
    check<SpecMismatch>(!t->defined() || t->sizes() == c10::IntArrayRef{x.size(1)}, "batch_norm",
                        "got a weight, bias or running statistic of ",
                        t->defined() ? t->sizes() : c10::IntArrayRef(), " for an input of ",
                        x.sizes(), "; expected one entry a channel.");
  }
  for (const auto* t : {&arguments.running_mean, &arguments.running_var}) {
    check<SpecMismatch>(!t->defined() || !is_shard_tensor(*t), "batch_norm",
                        "got a running statistic that is a ShardTensor; expected a plain tensor, "
                        "equal on every rank.");
  }
}

/// One level at a time: the statistics are given and channels whole, or nothing is cut.
Tensor elementwise(const Tensor& x, const Arguments& arguments) {
  const auto& spec = spec_of(x);
  const auto& mesh = mesh_of(x);
  const std::vector<Tensor> parameters{arguments.weight, arguments.bias};
  const auto local =
      spec->is_shard() ? local_weights(mesh, parameters) : local_copies(mesh, parameters);
  return from_local(arguments.with(local).run(to_local(x)), mesh, spec);
}

/// This rank's channels, of the input and of the arguments. NOTE [Idle ranks]: a rank without any
/// has a made-up one, which is not constant.
struct OwnChannels {
  Tensor x;
  Arguments arguments;
  Rows rows;  ///< without the made-up one

  /// `users`: the mesh over whose ranks the gradients of the weights are still to be summed.
  OwnChannels(const Bottom& bottom, const Arguments& all, const DeviceMesh& users)
      : x(bottom.local), arguments(all), rows(bottom.own(1)) {
    std::vector<Tensor> parameters{whole(all.weight), whole(all.bias)};
    if (users.defined()) parameters = local_weights(users, parameters);
    arguments = all.with(parameters);
    const Rows used = rows.size() > 0 ? rows : Rows{0, 1};
    for (auto* t : {&arguments.weight, &arguments.bias}) {
      if (t->defined()) *t = t->narrow(0, used.begin, used.size());
    }
    for (auto* t : {&arguments.running_mean, &arguments.running_var}) {
      if (t->defined()) *t = t->narrow(0, used.begin, used.size()).clone();
    }
    if (rows.size() > 0) return;
    auto sizes = x.sizes().vec();
    sizes[1] = 1;
    const int64_t count = c10::multiply_integers(sizes);
    const Tensor values = at::arange(count, x.options().dtype(at::kLong)).remainder(2);
    x = join({x, values.to(x.scalar_type()).view(sizes)}, 1);
  }
  Tensor kept(const Tensor& y) const { return rows.size() > 0 ? y : y.narrow(1, 0, 0); }
};

void update_running(const Arguments& arguments, const GroupStatistics& used, int64_t count) {
  if (!arguments.updates_running()) return;
  const at::NoGradGuard guard;
  const auto mix = [&](Tensor running, const Tensor& now) {
    running.mul_(1 - arguments.momentum)
        .add_(now.reshape(-1).to(running.options()), arguments.momentum);
  };
  const auto unbiased = static_cast<double>(count) / static_cast<double>(count - 1);
  mix(arguments.running_mean, used.mean);
  mix(arguments.running_var, used.variance * unbiased);
}

/// Every rank has updated those of its own channels.
void share_running(const Arguments& all, const OwnChannels& own, const Bottom& bottom) {
  if (!all.updates_running()) return;
  const at::NoGradGuard guard;
  Tensor both = at::stack({own.arguments.running_mean, own.arguments.running_var}, 1)
                    .narrow(0, 0, own.rows.size());
  if (const auto cuts = bottom.cuts_along({1}); !cuts.empty()) {
    const auto mesh = bottom.mesh_across({1});
    const auto spec = ShardTensorSpec::make(mesh.layout_ref(), Shard(0),
                                            {all.running_mean.size(0), 2}, cuts[0].owned);
    both = raw_local(redistribute(from_local(both, mesh, spec), spec->replicated()));
  }
  Tensor(all.running_mean).copy_(both.select(1, 0));
  Tensor(all.running_var).copy_(both.select(1, 1));
}

/// Seen as one sample of which every channel is a group: (1, channels, batch * space).
Tensor over_ranks(const OwnChannels& own, const Bottom& bottom, const std::vector<int64_t>& dims) {
  const Tensor rows = own.x.transpose(0, 1);
  const auto sizes = rows.sizes().vec();
  GroupShape shape{1, sizes[0], sizes[0], rows.numel() / sizes[0], bottom.counts_across(dims)};
  GroupStatistics used;
  const auto& arguments = own.arguments;
  const Tensor y =
      normalize_groups(rows.contiguous().view({1, sizes[0], -1}), arguments.weight, arguments.bias,
                       shape, arguments.eps, bottom.mesh_across(dims), &used);
  update_running(arguments, used, shape.total());
  return y.view(sizes).transpose(0, 1).contiguous(bottom.local.suggest_memory_format());
}

/// With the statistics of the batch.
Tensor normalize(const Tensor& x, const Arguments& arguments) {
  const Bottom bottom(x);
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (dim != 1) dims.push_back(dim);
  }
  const OwnChannels own(bottom, arguments, bottom.mesh_beside(dims));
  const bool shares_channels = bottom.mesh_across(dims).defined();
  const Tensor y = shares_channels ? over_ranks(own, bottom, dims) : own.arguments.run(own.x);
  share_running(arguments, own, bottom);
  return bottom.wrapped(own.kept(y));
}

/// With given statistics where channels are cut.
Tensor scale_own_channels(const Tensor& x, const Arguments& arguments) {
  const Bottom bottom(x);
  const OwnChannels own(bottom, arguments, bottom.mesh_beside({}));
  return bottom.wrapped(own.kept(own.arguments.run(own.x)));
}

bool is_cut(const Tensor& x) {
  for (const auto& placement : ShardTensor(x).placements()) {
    if (placement.is_shard()) return true;
  }
  return false;
}

bool has_cut_channels(const Tensor& x) {
  for (const auto& placement : ShardTensor(x).placements()) {
    if (placement.is_shard(1)) return true;
  }
  return false;
}

Tensor batch_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                  const OptionalTensor& running_mean, const OptionalTensor& running_var,
                  bool training, double momentum, double eps, bool /*cudnn_enabled*/) {
  const Arguments arguments{weight.value_or(Tensor()),
                            bias.value_or(Tensor()),
                            running_mean.value_or(Tensor()),
                            running_var.value_or(Tensor()),
                            training,
                            momentum,
                            eps};
  const auto& mesh = mesh_of(is_shard_tensor(input)              ? input
                             : is_shard_tensor(arguments.weight) ? arguments.weight
                                                                 : arguments.bias);
  check_arguments(input, arguments);
  const Tensor promoted = promote(input, mesh);
  const Tensor x = redistribute(promoted, dual_spec(spec_of(promoted)));
  if (mesh.root().size() == 1 || !is_cut(x)) return elementwise(x, arguments);
  if (!arguments.uses_batch()) {
    return has_cut_channels(x) ? scale_own_channels(x, arguments) : elementwise(x, arguments);
  }
  check<SpecMismatch>(x.numel() / std::max<int64_t>(x.size(1), 1) > 1, "batch_norm",
                      "got an input of ", x.sizes(),
                      " to normalize with its own statistics; expected more than one value a "
                      "channel.");
  return normalize(x, arguments);
}

// ---- the ops below batch_norm, which also return mean and 1 / deviation of every channel

using Normalized = std::tuple<Tensor, Tensor, Tensor>;

/// Empty where running statistics are used.
Normalized with_statistics(const Tensor& y, const Tensor& input, const OptionalTensor& weight,
                           bool uses_batch, double eps) {
  const at::NoGradGuard guard;
  const auto& mesh = mesh_of(y);
  const bool is_low = at::isReducedFloatingType(input.scalar_type());
  const Tensor x = promote(is_low ? input.to(at::kFloat) : input, mesh).detach();
  const bool has_float_weight = weight && weight->scalar_type() == at::kFloat;
  const auto dtype = is_low && !has_float_weight ? input.scalar_type() : x.scalar_type();
  if (!uses_batch) {
    const auto none = [&] { return at::empty({0}, innermost(x).options().dtype(dtype)); };
    return {y, promote(none(), mesh), promote(none(), mesh)};
  }
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (dim != 1) dims.push_back(dim);
  }
  const auto [variance, mean] = at::var_mean(x, dims, 0, /*keepdim=*/false);
  const auto reduced = [](const Tensor& t) { return redistribute(t, dual_spec(spec_of(t))); };
  Tensor inverse = (reduced(variance) + eps).rsqrt();
  if (eps == 0) inverse = inverse.masked_fill(inverse.isinf(), 0);  // of constant channels
  return {y, reduced(mean).to(dtype), inverse.to(dtype)};
}

Normalized native_batch_norm(const Tensor& input, const OptionalTensor& weight,
                             const OptionalTensor& bias, const OptionalTensor& running_mean,
                             const OptionalTensor& running_var, bool training, double momentum,
                             double eps) {
  check<SpecMismatch>(training || running_mean, "native_batch_norm",
                      "got neither training nor running statistics; expected one of them.");
  const Tensor y = shard::batch_norm(input, weight, bias, running_mean, running_var, training,
                                     momentum, eps, false);
  return with_statistics(y, input, weight, training, eps);
}

Normalized native_batch_norm_legit(const Tensor& input, const OptionalTensor& weight,
                                   const OptionalTensor& bias, Tensor& running_mean,
                                   Tensor& running_var, bool training, double momentum,
                                   double eps) {
  return shard::native_batch_norm(input, weight, bias, running_mean, running_var, training,
                                  momentum, eps);
}

Normalized native_batch_norm_of_batch(const Tensor& input, const OptionalTensor& weight,
                                      const OptionalTensor& bias, bool training, double momentum,
                                      double eps) {
  return shard::native_batch_norm(input, weight, bias, {}, {}, training, momentum, eps);
}

}  // namespace

SHARD_PATCH(batch_norm) {
  for (auto listing :
       {patch.function<at::_ops::native_batch_norm>(native_batch_norm),
        patch.function<at::_ops::_native_batch_norm_legit>(native_batch_norm_legit),
        patch.function<at::_ops::_native_batch_norm_legit_no_stats>(native_batch_norm_of_batch)}) {
    listing.shards("batch", "channels", "spatial");
  }
  patch.function<at::_ops::batch_norm>(batch_norm)
      .shards("batch", "channels", "spatial")
      .notes("instance_norm with running statistics decomposes into this");
}

}  // namespace shard
