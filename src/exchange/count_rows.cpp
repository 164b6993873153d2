// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <shard/count_rows.h>

#include <numeric>

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
  return std::accumulate(partition.begin(), partition.end(), int64_t{0});
}

int64_t total_of(const std::vector<Rows>& pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), int64_t{0},
                         [](int64_t sum, const Rows& piece) { return sum + piece.size(); });
}

}  // namespace shard
