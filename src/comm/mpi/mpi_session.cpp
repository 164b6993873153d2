// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_session.h"

#include <shard/error.h>
#include <shard/log.h>

#include <array>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/exception_text.h"
#include "comm/messages/message_communicator.h"
#include "comm/mpi/mpi_call.h"
#include "comm/mpi/mpi_header.h"
#include "comm/mpi/mpi_world.h"

namespace shard {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience = 10s;  // for the others to end after a failure
constexpr auto kPoll = 1ms;

/// Whether this process has initialised MPI, and must finalise it.
bool init_mpi() {
  int is_initialised = 0;
  MPI_Initialized(&is_initialised);
  if (is_initialised != 0) return false;
  int is_finalised = 0;
  MPI_Finalized(&is_finalised);
  check<ConfigError>(is_finalised == 0, "launch",
                     "MPI: got a second launch; expected one a process under mpirun, since MPI "
                     "cannot start again. Put both parts into one rank function.");
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  check<ConfigError>(provided >= MPI_THREAD_SERIALIZED, "launch", "MPI thread level: got ",
                     provided, "; expected at least ", MPI_THREAD_SERIALIZED,
                     " (MPI_THREAD_SERIALIZED), since backward may run on another thread. "
                     "Use an MPI library built with thread support.");
  return true;
}

class Session final : public MpiSession {
 public:
  explicit Session(std::chrono::milliseconds timeout)
      : is_owner_(init_mpi()),
        patience_(std::min(timeout, kPatience)),
        world_(std::make_shared<MpiWorld>(MPI_COMM_WORLD, timeout)) {
    std::vector<int> ranks(static_cast<size_t>(world_->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const int tag = world_->next_tag();
    world_->use_tag(tag);
    communicator_ = std::make_shared<MessageCommunicator>(world_, std::move(ranks), tag);
  }

  std::shared_ptr<CommunicatorBackend> world() override { return communicator_; }

  Ending finish(const std::exception_ptr& error) noexcept override {
    auto held = world_->lock();
    MpiControl& control = world_->control();
    if (error) control.fail(failed_rank(world_->rank(), exception_text(error)));
    control.announce_end();
    wait_for_others(held);
    const bool has_failed = control.failure().has_value();
    return {has_failed, has_failed && control.lowest_reporter() == world_->rank()};
  }

  void close() noexcept override {
    int is_finalised = 0;
    MPI_Finalized(&is_finalised);
    if (!is_owner_ || is_finalised != 0) return;
    const auto held = world_->lock();
    if (!world_->control().have_all_ended()) {
      std::fflush(nullptr);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    // After a failure messages may still be under way, with which MPI_Finalize hangs or crashes.
    // The launcher ends the job when this process exits with a non-zero code.
    if (!world_->control().failure()) MPI_Finalize();
  }

 private:
  /// Answers the others' questions until all have ended. A rank that has nothing left to do may
  /// wait here for hours; only after a failure is the time limited.
  void wait_for_others(std::unique_lock<std::recursive_mutex>& held) noexcept {
    MpiControl& control = world_->control();
    std::optional<Clock::time_point> until;
    while (!control.have_all_ended()) {
      try {
        control.listen();
      } catch (const std::exception& error) {
        log(LogLevel::Warning, error.what());
        return;
      }
      if (control.failure() && !until) until = Clock::now() + patience_;
      if (until && Clock::now() > *until) return;
      held.unlock();
      std::this_thread::sleep_for(kPoll);
      held.lock();
    }
  }

  bool is_owner_;
  std::chrono::milliseconds patience_;
  std::shared_ptr<MpiWorld> world_;
  std::shared_ptr<MessageCommunicator> communicator_;
};

}  // namespace

bool has_mpi() { return true; }

// The first of the library's lines, up to the package that it came in.
std::string describe_mpi() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data(), static_cast<size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

std::unique_ptr<MpiSession> start_mpi(std::chrono::milliseconds timeout) {
  return std::make_unique<Session>(timeout);
}

}  // namespace shard
