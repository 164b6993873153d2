// SPDX-License-Identifier: Apache-2.0
// glu: one half of a dim, gated by the other. Cut along that dim, the two halves come to lie alike;
// nobody needs whole lines.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/glu.h>
#include <ATen/ops/sigmoid.h>
#include <shard/patch.h>
#include <shard/reduced.h>

namespace shard {
namespace {

using at::Tensor;

Tensor glu(const Tensor& x, int64_t dim) {
  check<SpecMismatch>(x.dim() > 0, "glu", "got a number; expected at least one dim.");
  const int64_t along = at::maybe_wrap_dim(dim, x.dim());
  check<SpecMismatch>(x.size(along) % 2 == 0, "glu", "got ", x.sizes(), " and dim ", along,
                      "; expected an even size to halve.");
  const int64_t n = x.size(along) / 2;
  const Tensor value = reduced(x);
  const auto& spec = spec_of(value);
  const auto& mesh = mesh_of(value);
  Shape sizes(x.sizes());
  sizes[static_cast<size_t>(along)] = n;
  if (!spec->is_shard() || spec->shard_dim() != along) {
    return from_local(at::glu(to_local(value), along), mesh,
                      spec->with(spec->placement(), sizes, spec->partition()));
  }
  const auto half = [&](int64_t begin) {
    return redistribute(value.narrow(along, begin, n),
                        spec->with(Shard(along), sizes, even_partition(n, mesh.size())));
  };
  return half(0) * half(n).sigmoid();
}

}  // namespace

SHARD_PATCH(glu) {
  patch.function<at::_ops::glu>(glu).shards("any dim").notes(
      "along the dim itself: the halves come to lie alike");
}

}  // namespace shard
