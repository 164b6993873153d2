// SPDX-License-Identifier: Apache-2.0
// NVIDIA GPUs. libshard needs no CUDA: the first call that asks for a device loads the plugin
// libshard_cuda.so (beside libshard), which brings LibTorch's CUDA library and NCCL with it.
#pragma once

#include <string>

namespace shard {

/// Whether tensors can live on a CUDA device. Loads the plugin (once a process, about a second).
/// Call it before torch::cuda functions, which know of no device until the plugin is loaded.
bool cuda_is_available();

/// One line: "2 devices; CUDA 13.0, cuDNN 9.13, NCCL 2.28.9", or why there is none. Loads the
/// plugin.
std::string describe_cuda();

}  // namespace shard
