// SPDX-License-Identifier: Apache-2.0
// Return codes of NCCL and CUDA as CommErrors.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>
#include <shard/error.h>

namespace shard {

inline void check_nccl(ncclResult_t code, const char* call) {
  check<CommError>(code == ncclSuccess || code == ncclInProgress, "nccl", call, ": got '",
                   ncclGetErrorString(code), "' (", ncclGetLastError(nullptr),
                   "); expected success. NCCL_DEBUG=INFO prints more.");
}

inline void check_cuda(cudaError_t code, const char* call) {
  check<CommError>(code == cudaSuccess, "cuda", call, ": got '", cudaGetErrorString(code),
                   "'; expected success. Look at what the device did before.");
}

}  // namespace shard
