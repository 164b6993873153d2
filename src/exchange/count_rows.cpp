// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <shard/count_rows.h>

namespace shard {

Partition count_rows(int64_t own, const DeviceMesh& mesh) {
  if (mesh.size() == 1) return {own};
  const auto options = at::TensorOptions(at::kLong).device(mesh.device());
  at::Tensor counts = at::empty({mesh.size()}, options);
  mesh.comm().all_gather_v(at::tensor({own}, options), counts.split(1));
  counts = counts.cpu();
  const auto* first = counts.const_data_ptr<int64_t>();
  return {first, first + counts.numel()};
}

int64_t total_of(const Partition& partition) {
  return offset_of(partition, static_cast<int64_t>(partition.size()));
}

}  // namespace shard
