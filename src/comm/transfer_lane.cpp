// SPDX-License-Identifier: Apache-2.0
#include "comm/transfer_lane.h"

#include <ATen/Parallel.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/volume.h"

namespace shard {
namespace {

using namespace std::chrono_literals;

/// Much longer than any wait for messages that are on their way.
constexpr auto kUnsuspicious = 200ms;

std::atomic<double> delay_per_byte{0};  // nanoseconds

void delay(const std::vector<Message>& receives) {
  const double nanoseconds = delay_per_byte.load(std::memory_order_relaxed);
  if (nanoseconds == 0) return;
  int64_t bytes = 0;
  for (const Message& message : receives) bytes += bytes_of(message.tensor);
  std::this_thread::sleep_for(
      std::chrono::duration<double, std::nano>(nanoseconds * static_cast<double>(bytes)));
}

}  // namespace

void set_transfer_delay(std::chrono::duration<double, std::nano> per_byte) {
  delay_per_byte.store(per_byte.count());
}

class TransferLane::Transfer {
 public:
  Transfer(std::vector<Message> sends, std::vector<Message> receives)
      : sends_(std::move(sends)),
        receives_(std::move(receives)),
        context_(c10::ThreadLocalDebugInfo::current()) {}

  void run(CommunicatorBackend& lane) noexcept {
    try {
      const c10::DebugInfoGuard of_the_rank(context_);
      delay(receives_);
      lane.exchange(sends_, receives_);
    } catch (...) {
      error_ = std::current_exception();
    }
    // Before the rank goes on: the memory is its own again.
    sends_.clear();
    receives_.clear();
    context_.reset();
  }
  void finish() {
    if (error_) return done_.set_exception(error_);
    done_.set_value();
  }
  bool is_done_after(std::chrono::nanoseconds most) const {
    return result_.wait_for(most) == std::future_status::ready;
  }
  void get() { result_.get(); }

 private:
  std::vector<Message> sends_, receives_;
  std::shared_ptr<c10::ThreadLocalDebugInfo> context_;
  std::exception_ptr error_;
  std::promise<void> done_;
  std::future<void> result_ = done_.get_future();
};

/// What the helper thread and its rank share.
struct TransferLane::Helper {
  explicit Helper(std::shared_ptr<CommunicatorBackend> backend) : lane(std::move(backend)) {}

  void work() {
    at::get_num_threads();  // else the setting below is lost
    at::set_num_threads(1);
    while (const auto transfer = next()) {
      transfer->run(*lane);
      note_idle();  // first, so that a rank that ends after its last wait() finds the helper idle
      transfer->finish();
    }
  }
  std::shared_ptr<Transfer> next() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return has_ended || !queue.empty(); });
    if (queue.empty()) return nullptr;
    auto transfer = std::move(queue.front());
    queue.pop_front();
    is_busy = true;
    return transfer;
  }

  void note_idle() {
    const std::lock_guard lock(mutex);
    is_busy = false;
  }

  const std::shared_ptr<CommunicatorBackend> lane;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Transfer>> queue;
  bool has_ended = false;
  bool is_busy = false;
  std::thread thread;
};

TransferLane::~TransferLane() {
  if (!helper_) return;
  bool is_idle = false;
  {
    const std::lock_guard lock(helper_->mutex);
    helper_->has_ended = true;
    is_idle = helper_->queue.empty() && !helper_->is_busy;
  }
  helper_->changed.notify_one();
  if (is_idle) {
    helper_->thread.join();
  } else {
    helper_->thread.detach();  // NOTE [Lanes]
  }
}

bool TransferLane::open() {
  if (is_opened_) return helper_ != nullptr;
  if (auto lane = base_->make_lane()) {
    auto helper = std::make_shared<Helper>(std::move(lane));
    helper->thread = std::thread([helper] { helper->work(); });
    helper_ = std::move(helper);
  }
  is_opened_ = true;
  return helper_ != nullptr;
}

std::shared_ptr<TransferLane::Transfer> TransferLane::start(std::vector<Message> sends,
                                                            std::vector<Message> receives) {
  auto transfer = std::make_shared<Transfer>(std::move(sends), std::move(receives));
  helper_->lane->note_handed_over();
  {
    const std::lock_guard lock(helper_->mutex);
    helper_->queue.push_back(transfer);
  }
  helper_->changed.notify_one();
  return transfer;
}

void TransferLane::wait(Transfer& transfer) {
  if (!transfer.is_done_after(kUnsuspicious)) {
    helper_->lane->note_rank_waits(true);
    transfer.is_done_after(std::chrono::hours(24 * 365));  // the helper's own waits are bounded
    helper_->lane->note_rank_waits(false);
  }
  transfer.get();
}

int64_t TransferLane::bytes_sent() const { return helper_ ? helper_->lane->bytes_sent() : 0; }

}  // namespace shard
