// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty_strided.h>
#include <shard/memory_order.h>

#include <algorithm>

#include "tensor/impl.h"

namespace shard {

Shape strides_in_order(c10::IntArrayRef sizes, c10::IntArrayRef like) {
  c10::SmallVector<size_t, 6> inner_first(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) inner_first[i] = sizes.size() - 1 - i;
  std::stable_sort(inner_first.begin(), inner_first.end(),
                   [&](size_t a, size_t b) { return like[a] < like[b]; });
  Shape strides(sizes.size());
  int64_t dense = 1;
  for (const size_t i : inner_first) {
    strides[i] = dense;
    dense *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

at::Tensor in_order(const at::Tensor& local, c10::IntArrayRef like) {
  if (const auto* level = impl_of(local)) {
    const at::Tensor result = wrap(in_order(level->local(), like), level->mesh(), level->spec());
    impl_of(result)->set_sizes_and_strides(local.sizes(), strides_in_order(local.sizes(), like));
    return result;
  }
  if (local.numel() == 0) return local;
  const Shape wanted = strides_in_order(local.sizes(), like);
  bool lies_so = true;
  for (size_t i = 0; i < wanted.size(); ++i) {
    lies_so &= local.sizes()[i] == 1 || local.strides()[i] == wanted[i];
  }
  return lies_so ? local : at::empty_strided(local.sizes(), wanted, local.options()).copy_(local);
}

void set_order(const at::Tensor& tensor, c10::IntArrayRef like) {
  for (auto* level = impl_of(tensor); level != nullptr; level = impl_of(level->local())) {
    level->set_sizes_and_strides(level->sizes(), strides_in_order(level->sizes(), like));
  }
}

bool has_thin_pieces(const ShardTensorSpec& spec) {
  return spec.is_shard() && std::any_of(spec.partition().begin(), spec.partition().end(),
                                        [](int64_t size) { return size <= 1; });
}

at::Tensor in_common_order(const at::Tensor& local, const ShardTensorSpec& spec) {
  return !local.is_contiguous() && has_thin_pieces(spec) ? local.contiguous() : local;
}

}  // namespace shard
