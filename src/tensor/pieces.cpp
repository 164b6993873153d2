// SPDX-License-Identifier: Apache-2.0
#include <shard/pieces.h>

namespace shard {

std::vector<at::Tensor> pieces_of(const at::Tensor& tensor, int64_t dim,
                                  const Partition& partition) {
  std::vector<at::Tensor> pieces;
  pieces.reserve(partition.size());
  int64_t begin = 0;
  for (const int64_t size : partition) {
    pieces.push_back(tensor.narrow(dim, begin, size));
    begin += size;
  }
  return pieces;
}

}  // namespace shard
