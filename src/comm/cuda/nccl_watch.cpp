// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/nccl_watch.h"

#include <shard/log.h>

#include <cstdio>
#include <cstdlib>

#include "comm/cuda/nccl_call.h"

namespace shard {
namespace {

using namespace std::chrono_literals;
constexpr auto kLook = 100ms;

}  // namespace

NcclWatch::NcclWatch(ncclComm_t comm, int device, std::string who,
                     std::chrono::milliseconds timeout)
    : comm_(comm), device_(device), who_(std::move(who)), timeout_(timeout) {
  thread_ = std::thread([this] { watch(); });
}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (const Running& running : running_) cudaEventDestroy(running.done);
}

void NcclWatch::add(std::string operation, cudaStream_t stream) {
  cudaEvent_t done = nullptr;
  check_cuda(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "cudaEventCreate");
  check_cuda(cudaEventRecord(done, stream), "cudaEventRecord");
  const std::lock_guard lock(mutex_);
  running_.push_back({std::move(operation), done, Clock::now() + timeout_});
}

void NcclWatch::wait_until_idle() {
  std::unique_lock lock(mutex_);
  while (!running_.empty()) changed_.wait_for(lock, kLook);
}

void NcclWatch::watch() {
  cudaSetDevice(device_);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [this] { return is_over_; })) {
    drop_finished();
    const std::string text = complaint();
    if (text.empty()) continue;
    log_line(LogLevel::Error, text);
    std::fflush(nullptr);
    std::_Exit(1);
  }
}

void NcclWatch::drop_finished() {
  while (!running_.empty() && cudaEventQuery(running_.front().done) == cudaSuccess) {
    cudaEventDestroy(running_.front().done);
    running_.pop_front();
  }
  if (running_.empty()) changed_.notify_all();
}

std::string NcclWatch::complaint() const {
  ncclResult_t state = ncclSuccess;
  if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess ||
      (state != ncclSuccess && state != ncclInProgress)) {
    return c10::str("[nccl] ", who_, ": got '", ncclGetErrorString(state),
                    "'; expected success. Another process may have ended: look at its output.");
  }
  if (running_.empty() || Clock::now() < running_.front().until) return "";
  const double seconds = std::chrono::duration<double>(timeout_).count();
  return c10::str("[nccl] ", who_, ": ", running_.front().operation, " has not finished after ",
                  seconds,
                  " s; expected the same calls on every rank. Set "
                  "SHARD_CHECK_NCCL=1 to compare them, or raise SHARD_TIMEOUT.");
}

}  // namespace shard
