// SPDX-License-Identifier: Apache-2.0
// Ops that return a C++ value: the same global answer on every rank, else ranks would branch apart.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_has_same_storage_numel.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/is_same_size.h>
#include <shard/patch.h>

namespace shard {
namespace {

using at::Tensor;

at::Scalar local_scalar_dense(const Tensor& x) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto& spec = spec_of(x);
  check<SpecMismatch>(x.numel() == 1, "item", "got ", *spec, "; expected a tensor of one element.");
  return at::_local_scalar_dense(raw_local(redistribute(x, spec->replicated())));
}

/// Whether `predicate` holds for the aligned local parts of every rank.
template <class Predicate>
bool on_all_ranks(const Tensor& a, const Tensor& b, const Predicate& predicate) {
  const auto& mesh = mesh_of(is_shard_tensor(a) ? a : b);
  const Tensor x = promote(a, mesh);
  const auto target = dual_spec(spec_of(x));
  const bool local = predicate(raw_local(redistribute(x, target)),
                               raw_local(redistribute(promote(b, mesh), target)));
  Tensor all = at::full({}, local ? 1 : 0, at::TensorOptions(at::kLong).device(x.device()));
  mesh.comm().all_reduce(all, ReduceOp::Min);
  return at::_local_scalar_dense(all).toLong() == 1;
}

bool equal(const Tensor& a, const Tensor& b) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  return on_all_ranks(a, b, [](const Tensor& x, const Tensor& y) { return at::equal(x, y); });
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  check<SpecMismatch>(a.sizes() == b.sizes(), "allclose", "got ", a.sizes(), " and ", b.sizes(),
                      "; expected equal sizes. Broadcast one of them first.");
  return on_all_ranks(a, b, [&](const Tensor& x, const Tensor& y) {
    return at::allclose(x, y, rtol, atol, equal_nan);
  });
}

bool has_same_storage_numel(const Tensor& a, const Tensor& b) { return a.numel() == b.numel(); }
bool is_same_size(const Tensor& a, const Tensor& b) { return a.sizes() == b.sizes(); }

}  // namespace

SHARD_PATCH(values) {
  namespace ops = at::_ops;
  patch.dispatch<ops::_local_scalar_dense>(local_scalar_dense).shards("any dim");
  patch.dispatch<ops::is_same_size>(is_same_size).shards("any dim");
  patch.dispatch<ops::_has_same_storage_numel>(has_same_storage_numel);
  patch.dispatch<ops::equal>(equal).shards("any dim");
  patch.dispatch<ops::allclose>(allclose).shards("any dim");
}

}  // namespace shard
