// SPDX-License-Identifier: Apache-2.0
#include "random/runs.h"

#include <algorithm>

namespace shard {

Runs::Runs(c10::IntArrayRef sizes, c10::IntArrayRef begin, c10::IntArrayRef size) {
  if (std::find(size.begin(), size.end(), 0) != size.end()) return;
  count_ = 1;
  size_t dim = sizes.size();
  int64_t stride = 1;
  while (dim > 0 && size[dim - 1] == sizes[dim - 1]) stride *= sizes[--dim];
  length_ = stride;
  if (dim == 0) return;
  --dim;  // the last dim that is cut
  length_ = stride * size[dim];
  offset_ = stride * begin[dim];
  stride *= sizes[dim];
  while (dim-- > 0) {
    dims_.push_back({begin[dim], size[dim], stride});
    count_ *= size[dim];
    stride *= sizes[dim];
  }
}

int64_t Runs::begin(int64_t run) const {
  int64_t place = offset_;
  for (const Dim& dim : dims_) {
    place += (dim.begin + run % dim.size) * dim.stride;
    run /= dim.size;
  }
  return place;
}

int64_t Runs::first_behind(int64_t place) const {
  int64_t low = 0;
  int64_t high = count_;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (begin(middle) + length_ > place) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace shard
