// SPDX-License-Identifier: Apache-2.0
#include <c10/core/WrapDimMinimal.h>
#include <shard/rule.h>

namespace shard {

int64_t OpCall::dim(size_t i, int64_t ndim) const { return c10::maybe_wrap_dim(integer(i), ndim); }

std::optional<int64_t> OpCall::optional_integer(size_t i) const {
  return arguments_[i].isNone() ? std::nullopt : std::optional<int64_t>(arguments_[i].toInt());
}

std::vector<int64_t> local_sizes(c10::IntArrayRef sizes, const Layout& layout, int64_t rank) {
  auto result = sizes.vec();
  if (layout.is_shard()) {
    result[static_cast<size_t>(layout.dim())] = layout.partition[static_cast<size_t>(rank)];
  }
  return result;
}

}  // namespace shard
