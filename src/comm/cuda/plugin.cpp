// SPDX-License-Identifier: Apache-2.0
// libshard_cuda.so: registers itself with libshard when it is loaded.
#include <ATen/Context.h>
#include <cuda_runtime.h>
#include <cudnn_version.h>
#include <unistd.h>

#include <array>

#include "comm/cuda/nccl_call.h"
#include "comm/cuda/nccl_communicator.h"
#include "comm/device_plugin.h"

namespace shard {
namespace {

std::string identity(c10::Device device) {
  std::array<char, 256> host{};
  std::array<char, 64> bus{};
  gethostname(host.data(), host.size() - 1);
  const int index = device.has_index() ? device.index() : 0;
  check_cuda(cudaDeviceGetPCIBusId(bus.data(), bus.size(), index), "cudaDeviceGetPCIBusId");
  return c10::str(host.data(), "/", bus.data());
}

std::string kind(c10::Device device) {
  cudaDeviceProp properties{};
  const int index = device.has_index() ? device.index() : 0;
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return c10::str(properties.name, ", ", properties.multiProcessorCount, " multiprocessors of ",
                  properties.maxThreadsPerMultiProcessor, " threads");
}

std::shared_ptr<CommunicatorBackend> make_backend(std::shared_ptr<CommunicatorBackend> host,
                                                  c10::Device device) {
  return std::make_shared<NcclCommunicator>(std::move(host), device);
}

std::string versions() {
  int cuda = 0;
  int nccl = 0;
  cudaRuntimeGetVersion(&cuda);
  ncclGetVersion(&nccl);
  return c10::str("CUDA ", cuda / 1000, ".", cuda % 1000 / 10, ", cuDNN ", CUDNN_MAJOR, ".",
                  CUDNN_MINOR, ", NCCL ", nccl / 10000, ".", nccl / 100 % 100, ".", nccl % 100);
}

const DevicePlugin plugin{&identity, &kind, &make_backend, &versions};

[[maybe_unused]] const bool is_registered = (register_device_plugin(&plugin), true);

}  // namespace
}  // namespace shard
