// SPDX-License-Identifier: Apache-2.0
#include "random/integer_range.h"

#include <ATen/native/DistributionTemplates.h>

#include <limits>

namespace shard {
namespace {

template <class T>
int64_t last_integer() {
  if constexpr (std::is_same_v<T, bool>) {
    return 1;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<int64_t>(std::numeric_limits<T>::max());
  } else {
    return int64_t{1} << std::numeric_limits<T>::digits;
  }
}

template <class T>
uint64_t range(int64_t from, std::optional<int64_t> to) {
  int64_t last = to ? *to - 1 : last_integer<T>();
  if constexpr (!std::is_integral_v<T>) {  // rounding must not leave the interval
    from = at::native::templates::update_from<T>(from);
    if (to) last = at::native::templates::update_to<T>(*to) - 1;
  }
  return static_cast<uint64_t>(last) - static_cast<uint64_t>(from) + 1;
}

}  // namespace

uint64_t integer_range(int64_t from, std::optional<int64_t> to, at::ScalarType dtype) {
  if (!to && from == std::numeric_limits<int64_t>::lowest()) return 0;
  return AT_DISPATCH_V2(dtype, "random_", AT_WRAP([&] { return range<scalar_t>(from, to); }),
                        AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool,
                        at::kHalf, at::kBFloat16);
}

}  // namespace shard
