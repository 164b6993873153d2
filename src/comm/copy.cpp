// SPDX-License-Identifier: Apache-2.0
#include "comm/copy.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <cstring>

#include "comm/transposed_copy.h"
#include "comm/volume.h"

namespace shard {
namespace {

// Below, the dispatcher costs more than the copy. Above, LibTorch's vectorised loop is the safer
// choice: memcpy collapses for some distances between source and destination (glibc 2.36 on Zen 3).
constexpr int64_t kMemcpyBytes = 8192;

}  // namespace

void copy_plain(const at::Tensor& to, const at::Tensor& from) {
  const int64_t bytes = bytes_of(to);
  if (bytes == 0) return;
  if (bytes <= kMemcpyBytes && to.is_contiguous() && from.is_contiguous() && !from.is_conj() &&
      !from.is_neg()) {
    void* target = to.mutable_data_ptr();
    if (target != from.const_data_ptr()) {
      std::memcpy(target, from.const_data_ptr(), static_cast<size_t>(bytes));
    }
    return;
  }
  if (copy_transposed(to, from)) return;
  const at::AutoDispatchBelowADInplaceOrView plain;
  to.copy_(from);
}

at::Tensor packed(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView plain;
  const at::Tensor values = tensor.resolve_conj().resolve_neg();
  if (values.is_contiguous() || !values.is_cpu()) return values.contiguous();
  const at::Tensor dense = at::empty(values.sizes(), values.options());
  copy_plain(dense, values);
  return dense;
}

}  // namespace shard
