// SPDX-License-Identifier: Apache-2.0
// MPI for the tests that mpirun starts: every rank runs the same tests on one communicator of all
// ranks; rank 0 reports, the others speak when something fails.
#pragma once

#include <gtest/gtest.h>
#include <shard/launch.h>

#include <chrono>
#include <iostream>
#include <memory>

#include "comm/mpi_session.h"
#include "runtime/rank_device.h"
#include "support/device.h"

namespace shard::testing {

class FailurePrinter : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cerr << "rank " + std::to_string(rank_) + ": " +
                     (result.file_name() ? result.file_name() : "") + ":" +
                     std::to_string(result.line_number()) + ": " + result.message() + "\n";
  }

 private:
  int rank_;
};

class MpiEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    session_ = start_mpi(std::chrono::seconds(60));
    world_ = Communicator(session_->world(), "world");
    const c10::Device device = device_of_process_rank(device_under_test(), *session_->world());
    job_ = std::make_unique<World>(Communicator(backend_for(session_->world(), device), "world"),
                                   Launcher::Mpi, device);
    if (world_.rank() == 0) return;
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(world_.rank()));
  }
  void TearDown() override {
    world_ = {};
    job_.reset();
    session_->finish(nullptr);
    session_->close();
  }
  const Communicator& world() const { return world_; }
  World& job() const { return *job_; }

 private:
  std::unique_ptr<MpiSession> session_;
  Communicator world_;
  std::unique_ptr<World> job_;
};

inline MpiEnvironment* const mpi_environment =
    static_cast<MpiEnvironment*>(::testing::AddGlobalTestEnvironment(new MpiEnvironment));

/// All ranks, for CPU tensors.
inline const Communicator& mpi_world() { return mpi_environment->world(); }
/// All ranks, for tensors on the device under test.
inline World& mpi_job() { return mpi_environment->job(); }

}  // namespace shard::testing
