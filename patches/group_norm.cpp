// SPDX-License-Identifier: Apache-2.0
// Group normalization, and instance normalization, which is one with a group a channel. Batch
// shards and shards of whole groups are local; in space the statistics are merged over the ranks; a
// channel shard that cuts a group is moved to the largest spatial dim first.
#include <ATen/ops/cat.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/instance_norm.h>
#include <ATen/ops/instance_norm_native.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <shard/exchange.h>
#include <shard/normalization_patch.h>

namespace shard {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

struct Arguments {
  int64_t groups;
  Tensor weight, bias;  // may be undefined
  double eps;
};

OptionalTensor optional(const Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; }

Tensor run(const Tensor& local, int64_t groups, const std::vector<Tensor>& parameters, double eps) {
  return at::group_norm(local, groups, optional(parameters[0]), optional(parameters[1]), eps,
                        false);
}

void check_arguments(const Tensor& x, const Arguments& arguments) {
  check<SpecMismatch>(x.dim() >= 2 && arguments.groups > 0 && x.size(1) % arguments.groups == 0,
                      "group_norm", "got ", arguments.groups, " groups for an input of ", x.sizes(),
                      "; expected a number of groups that divides the channels (dim 1).");
  for (const auto* parameter : {&arguments.weight, &arguments.bias}) {
    check<SpecMismatch>(!parameter->defined() || parameter->sizes() == c10::IntArrayRef{x.size(1)},
                        "group_norm", "got a weight or bias of ",
                        parameter->defined() ? parameter->sizes() : c10::IntArrayRef(),
                        " for an input of ", x.sizes(), "; expected one entry a channel.");
  }
}

std::vector<int64_t> dims_from(int64_t first, int64_t end) {
  std::vector<int64_t> dims;
  for (int64_t dim = first; dim < end; ++dim) dims.push_back(dim);
  return dims;
}

/// The statistics of a sample lie on all ranks, along one or several mesh dims.
Tensor over_space(const Tensor& input, const Arguments& arguments) {
  const Tensor x = with_whole_dim(input, 1);
  const Bottom bottom(x);
  const auto format = bottom.local.suggest_memory_format();
  const Tensor local = bottom.local.contiguous(c10::MemoryFormat::Contiguous);
  const auto space = dims_from(2, x.dim());
  const auto mesh = bottom.mesh_across(space);
  GroupShape shape{local.size(0), x.size(1), arguments.groups, 1, bottom.counts_across(space)};
  shape.inner = c10::multiply_integers(local.sizes().slice(2));
  for (auto& count : shape.counts) count *= x.size(1) / arguments.groups;
  std::vector<Tensor> weights{whole(arguments.weight), whole(arguments.bias)};
  if (const auto batch = bottom.mesh_beside(space); batch.defined()) {
    weights = local_weights(batch, weights);
  }
  const Tensor y = normalize_groups(local, weights[0], weights[1], shape, arguments.eps, mesh);
  return bottom.wrapped(y.contiguous(format));
}

bool cuts_a_group(const ShardTensorSpec& spec, int64_t channels_per_group) {
  return std::any_of(spec.partition().begin(), spec.partition().end(),
                     [&](int64_t size) { return size % channels_per_group != 0; });
}

/// Every rank owns whole groups, perhaps none. Then it normalizes one that is made up and keeps
/// nothing of it: the same nodes as on the other ranks.
Tensor over_own_groups(const Tensor& x, const Arguments& arguments) {
  const auto& spec = spec_of(x);
  const int64_t rank = mesh_of(x).rank();
  const int64_t channels = spec->local_size(rank);
  const int64_t channels_per_group = x.size(1) / arguments.groups;
  const int64_t made_up = channels == 0 ? channels_per_group : 0;
  const int64_t first = made_up > 0 ? 0 : spec->offset(rank);
  auto own = local_weights(mesh_of(x), {arguments.weight, arguments.bias});
  for (auto& parameter : own) {
    if (parameter.defined()) parameter = parameter.narrow(0, first, channels + made_up);
  }
  Tensor local = to_local(x);
  if (made_up > 0) local = at::cat({local, fill_rows(local, 1, made_up)}, 1);
  const double eps = made_up > 0 ? 1 : arguments.eps;  // a negative one would make it NaN
  const Tensor y = run(local, (channels + made_up) / channels_per_group, own, eps);
  return from_local(made_up > 0 ? y.narrow(1, 0, 0) : y, mesh_of(x), spec);
}

Tensor normalize_shard(const Tensor& x, const Arguments& arguments) {
  const auto& spec = spec_of(x);
  if (spec->shard_dim() == 0) {
    const auto weights = local_weights(mesh_of(x), {arguments.weight, arguments.bias});
    return from_local(run(to_local(x), arguments.groups, weights, arguments.eps), mesh_of(x), spec);
  }
  if (spec->shard_dim() > 1) return over_space(x, arguments);
  if (!cuts_a_group(*spec, x.size(1) / arguments.groups)) return over_own_groups(x, arguments);
  int64_t target = x.dim() > 2 ? 2 : 0;
  for (int64_t dim = 2; dim < x.dim(); ++dim) {
    if (x.size(dim) > x.size(target)) target = dim;
  }
  return normalize_shard(redistribute(x, spec->with(Shard(target), x.sizes())), arguments);
}

Tensor group_norm(const Tensor& input, int64_t groups, const OptionalTensor& weight,
                  const OptionalTensor& bias, double eps, bool /*cudnn_enabled*/) {
  const Arguments arguments{groups, weight.value_or(Tensor()), bias.value_or(Tensor()), eps};
  const auto& mesh = mesh_of(is_shard_tensor(input)              ? input
                             : is_shard_tensor(arguments.weight) ? arguments.weight
                                                                 : arguments.bias);
  const Tensor promoted = promote(input, mesh);
  const Tensor x = redistribute(promoted, dual_spec(spec_of(promoted)));
  if (mesh.size() == 1 || !spec_of(x)->is_shard()) {
    const auto weights = local_copies(mesh, {arguments.weight, arguments.bias});
    return from_local(run(to_local(x), groups, weights, eps), mesh, spec_of(x));
  }
  check_arguments(x, arguments);
  return normalize_shard(x, arguments);
}

Tensor instance_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                     const OptionalTensor& running_mean, const OptionalTensor& running_var,
                     bool use_input_stats, double momentum, double eps, bool cudnn_enabled) {
  const bool has_running = running_mean && running_mean->defined();
  // Running statistics are means over the samples, and one rank has LibTorch's own bits.
  if (!use_input_stats || has_running || !is_shard_tensor(input) ||
      mesh_of(input).root().size() == 1) {
    return at::native::instance_norm(input, weight, bias, running_mean, running_var,
                                     use_input_stats, momentum, eps, cudnn_enabled);
  }
  check<SpecMismatch>(input.dim() > 2 && c10::multiply_integers(input.sizes().slice(2)) > 1,
                      "instance_norm", "got an input of ", input.sizes(),
                      "; expected (batch, channels, space...) with more than one value a channel.");
  // Autocast has a rule for group_norm, but none for instance_norm.
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return shard::group_norm(input, input.size(1), weight, bias, eps, cudnn_enabled);
}

}  // namespace

SHARD_PATCH(group_norm) {
  patch.function<at::_ops::group_norm>(group_norm)
      .shards("batch", "channels", "spatial")
      .notes("a channel shard that cuts a group moves to the largest spatial dim");
  patch.function<at::_ops::instance_norm>(instance_norm)
      .shards("batch", "channels", "spatial")
      .notes("with running statistics: as batch_norm");
}

}  // namespace shard
