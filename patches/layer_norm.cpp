// SPDX-License-Identifier: Apache-2.0
// Layer normalization. Local unless a normalized dim is sharded; then the statistics are merged
// over the ranks.
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/var_mean.h>
#include <shard/normalization_patch.h>

namespace shard {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

OptionalTensor optional(const Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; }

/// The samples are the leading dims, each cut along normalized ones.
Tensor over_cut_samples(const Tensor& x, int64_t normalized_dims,
                        const std::vector<Tensor>& parameters, double eps) {
  const Bottom bottom(x);
  const Tensor local = bottom.local.contiguous();
  const auto leading = static_cast<size_t>(x.dim() - normalized_dims);
  std::vector<int64_t> normalized;
  for (auto dim = static_cast<int64_t>(leading); dim < x.dim(); ++dim) normalized.push_back(dim);
  GroupShape shape;
  shape.batch = c10::multiply_integers(local.sizes().slice(0, leading));
  shape.inner = c10::multiply_integers(local.sizes().slice(leading));
  shape.counts = bottom.counts_across(normalized);
  const auto mesh = bottom.mesh_across(normalized);
  Tensor y = normalize_groups(local, {}, {}, shape, eps, mesh);
  auto own = local_weights(mesh, {whole(parameters[0]), whole(parameters[1])});
  if (const auto beside = bottom.mesh_beside(normalized); beside.defined()) {
    own = local_weights(beside, own);
  }
  for (auto& parameter : own) {
    if (!parameter.defined()) continue;
    for (const int64_t dim : normalized) {
      const Rows rows = bottom.own(dim);
      parameter = parameter.narrow(dim - static_cast<int64_t>(leading), rows.begin, rows.size());
    }
  }
  if (own[0].defined()) y = y * own[0];
  if (own[1].defined()) y = y + own[1];
  return bottom.wrapped(y.to(x.scalar_type()));
}

Tensor layer_norm(const Tensor& input, c10::IntArrayRef normalized_shape,
                  const OptionalTensor& weight, const OptionalTensor& bias, double eps,
                  bool /*cudnn_enable*/) {
  const std::vector<Tensor> parameters{weight.value_or(Tensor()), bias.value_or(Tensor())};
  const auto& mesh = mesh_of(is_shard_tensor(input)           ? input
                             : is_shard_tensor(parameters[0]) ? parameters[0]
                                                              : parameters[1]);
  const Tensor promoted = promote(input, mesh);
  const Tensor x = redistribute(promoted, dual_spec(spec_of(promoted)));
  const auto& spec = spec_of(x);
  const auto dims = static_cast<int64_t>(normalized_shape.size());
  if (mesh.size() > 1 && spec->is_shard() && spec->shard_dim() >= x.dim() - dims) {
    check<SpecMismatch>(
        x.dim() >= dims && x.sizes().slice(static_cast<size_t>(x.dim() - dims)) == normalized_shape,
        "layer_norm", "got an input of ", x.sizes(), "; expected its last dims to be ",
        normalized_shape, ".");
    return over_cut_samples(x, dims, parameters, eps);
  }
  const auto own =
      spec->is_shard() ? local_weights(mesh, parameters) : local_copies(mesh, parameters);
  return from_local(
      at::layer_norm(to_local(x), normalized_shape, optional(own[0]), optional(own[1]), eps, false),
      mesh, spec);
}

Tensor whole_sums(const Tensor& t) { return redistribute(t, dual_spec(spec_of(t))); }

/// The op below layer_norm, which also returns mean and 1 / deviation of every sample.
std::tuple<Tensor, Tensor, Tensor> native_layer_norm(const Tensor& input,
                                                     c10::IntArrayRef normalized_shape,
                                                     const OptionalTensor& weight,
                                                     const OptionalTensor& bias, double eps) {
  const Tensor y = shard::layer_norm(input, normalized_shape, weight, bias, eps, false);
  const at::NoGradGuard guard;
  const bool is_low = at::isReducedFloatingType(input.scalar_type());
  const Tensor x = promote(is_low ? input.to(at::kFloat) : input, mesh_of(y)).detach();
  std::vector<int64_t> dims;
  for (auto dim = x.dim() - static_cast<int64_t>(normalized_shape.size()); dim < x.dim(); ++dim)
    dims.push_back(dim);
  const auto [variance, mean] = at::var_mean(x, dims, 0, /*keepdim=*/true);
  const bool has_float_weight = weight && weight->scalar_type() == at::kFloat;
  const auto dtype = is_low && !has_float_weight ? input.scalar_type() : x.scalar_type();
  return {y, whole_sums(mean).to(dtype), (whole_sums(variance) + eps).rsqrt().to(dtype)};
}

}  // namespace

SHARD_PATCH(layer_norm) {
  patch.function<at::_ops::layer_norm>(layer_norm).shards("any dim");
  patch.function<at::_ops::native_layer_norm>(native_layer_norm).shards("any dim");
}

}  // namespace shard
