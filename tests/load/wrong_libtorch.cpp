// SPDX-License-Identifier: Apache-2.0
// Preloaded, makes the loaded LibTorch claim another version.
#include <string>

namespace at {
std::string show_config() { return "TORCH_VERSION=1.0.0, "; }
}  // namespace at
