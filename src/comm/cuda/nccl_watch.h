// SPDX-License-Identifier: Apache-2.0
// NcclWatch: the timeout of NCCL operations. They run on the device, so the rank that has started
// one may wait for it anywhere (in .item(), in a copy). A thread looks at the oldest unfinished
// one; when its time is over, or NCCL reports an error, no result of this process can be trusted
// any more: it says which operation did not finish and ends the process.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace shard {

class NcclWatch {
 public:
  using Clock = std::chrono::steady_clock;
  /// `who`: for the text. `timeout`: of one operation.
  NcclWatch(ncclComm_t comm, int device, std::string who, std::chrono::milliseconds timeout);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  /// The operation just put on `stream`.
  void add(std::string operation, cudaStream_t stream);
  /// Returns when all have finished.
  void wait_until_idle();

 private:
  struct Running {
    std::string operation;
    cudaEvent_t done;
    Clock::time_point until;
  };
  void watch();
  void drop_finished();
  /// Empty: nothing is wrong.
  std::string complaint() const;

  ncclComm_t comm_;
  int device_;
  std::string who_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Running> running_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace shard
