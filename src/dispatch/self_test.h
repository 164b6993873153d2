// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace shard {

/// Checks once, when the library is loaded, that the headers it was built with, the LibTorch that
/// was loaded and the two dispatch keys fit together. If not, prints one error and
/// ends the program.
void check_libtorch();

}  // namespace shard
