// SPDX-License-Identifier: Apache-2.0
// What this libshard was built with and finds at run time.
#pragma once

#include <string>

namespace shard {

/// Lines `key: value` for `shard info` and bug reports.
std::string describe_build();

}  // namespace shard
