// SPDX-License-Identifier: Apache-2.0
// MpiWorld: what all communicators of one MPI job share: the two MPI communicators (data, control),
// the wait that cannot hang, and the buffers of failed operations.
//
// NOTE [Communicators are tags]
// Splitting makes no MPI communicator. A communicator is a list of world ranks and a tag that
// differs from the tags of all other communicators of its ranks. Communicators that share a tag
// share no rank, so their messages cannot be mixed up. That keeps split free of blocking MPI calls
// and of MPI's limit on communicators.
#pragma once

#include <c10/util/ArrayRef.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "comm/mpi/mpi_control.h"
#include "comm/mpi/mpi_header.h"

namespace shard {

/// The operation that a wait belongs to, for questions and errors.
struct MpiOperation {
  int tag = 0;                      ///< the communicator's
  c10::ArrayRef<int> members = {};  ///< its world ranks
  uint64_t number = 0;
  CommKind kind = CommKind::None;
};

/// Requests under way, and for each the world rank at the other end.
struct MpiRequests {
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  void add(MPI_Request request, int peer) {
    requests.push_back(request);
    peers.push_back(peer);
  }
};

class MpiWorld {
 public:
  /// Collective over `base`.
  MpiWorld(MPI_Comm base, std::chrono::milliseconds timeout);

  MPI_Comm data() const { return data_; }
  MpiControl& control() { return control_; }
  int rank() const { return control_.rank(); }
  int size() const { return control_.size(); }

  /// Waits for all requests; `on_done(i)` as each completes, which may add more. Ends early when a
  /// rank fails, has ended, is in another operation, or when the time is over.
  void wait(MpiRequests& waiting, const MpiOperation& operation,
            const std::function<void(size_t)>& on_done);

  /// Records and announces the failure (unless there is one already) and raises the job's first
  /// one.
  [[noreturn]] void fail(const MpiOperation& operation, const Failure& failure);
  void raise_if_failed(const MpiOperation& operation);

  /// Takes the buffers of requests that will never complete: MPI may still write into them.
  static void bury(std::shared_ptr<void> buffers);

  /// The least tag that no communicator of this rank has had.
  int next_tag() const { return next_tag_; }
  void use_tag(int tag) { next_tag_ = tag + 1; }

 private:
  MPI_Comm data_ = MPI_COMM_NULL;
  MpiControl control_;
  std::chrono::milliseconds timeout_;
  int spins_;
  int next_tag_ = 0;
};

}  // namespace shard
