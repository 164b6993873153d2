// SPDX-License-Identifier: Apache-2.0
#include <c10/core/TensorImpl.h>
#include <shard/pieces.h>

namespace shard {
namespace {

using at::Tensor;

/// As narrow(), but of plain tensors without the dispatcher, which takes longer than a small piece
/// takes to travel; it is not recorded for a gradient.
Tensor narrowed(const Tensor& tensor, int64_t dim, int64_t begin, int64_t size) {
  if (!tensor.has_storage()) return tensor.narrow(dim, begin, size);
  Shape sizes(tensor.sizes());
  sizes[static_cast<size_t>(dim)] = size;
  auto piece = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  auto* impl = piece.unsafeGetTensorImpl();
  impl->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  impl->set_storage_offset(tensor.storage_offset() + begin * tensor.stride(dim));
  impl->set_sizes_and_strides(sizes, tensor.strides());
  return piece;
}

}  // namespace

std::vector<Tensor> pieces_of(const Tensor& tensor, int64_t dim, const Partition& partition) {
  std::vector<Tensor> pieces;
  pieces.reserve(partition.size());
  int64_t begin = 0;
  for (const int64_t size : partition) {
    pieces.push_back(narrowed(tensor, dim, begin, size));
    begin += size;
  }
  return pieces;
}

}  // namespace shard
