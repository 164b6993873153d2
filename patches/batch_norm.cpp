// SPDX-License-Identifier: Apache-2.0
// Batch normalization. The statistics of a channel are those of all elements on all ranks, whatever
// is cut, so the running statistics are equal everywhere; with running statistics it is
// elementwise.
#include <ATen/ops/batch_norm.h>
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
  Tensor run(const Tensor& x, const std::vector<Tensor>& parameters) const {
    return at::batch_norm(x, optional(parameters[0]), optional(parameters[1]),
                          optional(running_mean), optional(running_var), training, momentum, eps,
                          false);
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

/// One level at a time: the statistics are given, or nothing is cut.
Tensor elementwise(const Tensor& x, const Arguments& arguments) {
  const auto& spec = spec_of(x);
  const auto& mesh = mesh_of(x);
  const std::vector<Tensor> parameters{arguments.weight, arguments.bias};
  const auto local =
      spec->is_shard() ? local_weights(mesh, parameters) : local_copies(mesh, parameters);
  return from_local(arguments.run(to_local(x), local), mesh, spec);
}

void update_running(const Arguments& arguments, const GroupStatistics& used, int64_t count) {
  if (!arguments.training || !arguments.running_mean.defined()) return;
  const at::NoGradGuard guard;
  const auto mix = [&](Tensor running, const Tensor& now) {
    running.mul_(1 - arguments.momentum)
        .add_(now.reshape(-1).to(running.options()), arguments.momentum);
  };
  const auto unbiased = static_cast<double>(count) / static_cast<double>(count - 1);
  mix(arguments.running_mean, used.mean);
  mix(arguments.running_var, used.variance * unbiased);
}

/// Seen as one sample of which every channel is a group: (1, channels, batch * space).
Tensor over_all_ranks(const Tensor& x, const Arguments& arguments) {
  const Bottom bottom(x);
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (dim != 1) dims.push_back(dim);
  }
  const auto mesh = bottom.mesh_across(dims);
  const Tensor rows = bottom.local.transpose(0, 1);
  const auto sizes = rows.sizes().vec();
  const int64_t channels = x.size(1);
  GroupShape shape{1, channels, channels, 1, {}};
  shape.inner = rows.numel() / std::max<int64_t>(channels, 1);
  shape.counts = bottom.counts_across(dims);
  GroupStatistics used;
  const Tensor y =
      normalize_groups(rows.contiguous().view({1, channels, -1}), whole(arguments.weight),
                       whole(arguments.bias), shape, arguments.eps, mesh, &used);
  update_running(arguments, used, shape.total());
  const auto format = bottom.local.suggest_memory_format();
  return bottom.wrapped(y.view(sizes).transpose(0, 1).contiguous(format));
}

bool is_cut(const Tensor& x) {
  for (const auto& placement : ShardTensor(x).placements()) {
    if (placement.is_shard()) return true;
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
  const Tensor x = with_whole_dim(redistribute(promoted, dual_spec(spec_of(promoted))), 1);
  if (!arguments.uses_batch() || mesh.root().size() == 1 || !is_cut(x)) {
    return elementwise(x, arguments);
  }
  check<SpecMismatch>(x.numel() / std::max<int64_t>(x.size(1), 1) > 1, "batch_norm",
                      "got an input of ", x.sizes(),
                      " to normalize with its own statistics; expected more than one value a "
                      "channel.");
  return over_all_ranks(x, arguments);
}

}  // namespace

SHARD_PATCH(batch_norm) {
  patch.function<at::_ops::batch_norm>(batch_norm)
      .shards("batch", "spatial", "channels (moved to the largest other dim)")
      .notes("instance_norm decomposes into this");
}

}  // namespace shard
