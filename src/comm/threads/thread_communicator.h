// SPDX-License-Identifier: Apache-2.0
// The communicator of thread ranks: peers' tensors are read and written where they lie.
//
// Every operation moves the rank two steps forward at its gate: `begun` and `ended`. So the step
// tells which operation a rank is in even when ranks disagree about what it is.
#pragma once

#include <c10/util/SmallVector.h>
#include <shard/communicator.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/fingerprint.h"
#include "comm/threads/thread_group.h"

namespace shard {

class ThreadCommunicator final : public CommunicatorBackend {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank);

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  const char* backend_name() const override { return "threads"; }

  void barrier() override;
  void all_reduce(at::Tensor& tensor, ReduceOp op) override;
  void all_gather_v(const at::Tensor& piece, const std::vector<at::Tensor>& outputs) override;
  void reduce_scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output,
                        ReduceOp op) override;
  void all_to_all_v(const std::vector<at::Tensor>& sends,
                    const std::vector<at::Tensor>& receives) override;
  void broadcast(at::Tensor& tensor, int root) override;
  void scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output, int root) override;
  void exchange(const std::vector<Message>& sends, const std::vector<Message>& receives) override;
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override;
  std::shared_ptr<CommunicatorBackend> split(int color, int key) override;
  void poison(const std::string& why) noexcept override;
  int64_t bytes_sent() const override;
  std::shared_ptr<CommunicatorBackend> make_lane() override;
  void note_handed_over() override;
  void note_rank_waits(bool waits) override;

 private:
  /// Counts the operation and refuses a poisoned communicator.
  Fingerprint start(CommKind kind);
  Fingerprint start_collective(CommKind kind);
  /// Publishes the fingerprint and `steps`, waits until all ranks have begun, compares.
  void begin(const Fingerprint& fingerprint, uint32_t steps = 1);
  /// The same with tensors (not for one-step operations) that peers read or write until end().
  void begin_with(const Fingerprint& fingerprint, c10::ArrayRef<at::Tensor> tensors);
  /// The first half of these and the second: what lies between need not wait for the others.
  void announce(const Fingerprint& fingerprint, uint32_t steps);
  void announce_with(const Fingerprint& fingerprint, c10::ArrayRef<at::Tensor> tensors);
  void meet(const Fingerprint& fingerprint);
  /// Ends a two-step collective. `wait`: until all others have, so that the tensors are this rank's
  /// again.
  void end(bool wait = true);

  void wait_for(c10::ArrayRef<int> peers, uint32_t step);
  /// The rest of a wait that has become suspiciously long.
  RankGate::Outcome wait_long(int peer, uint32_t step, std::chrono::nanoseconds most);
  [[noreturn]] void timed_out(c10::ArrayRef<int> peers, uint32_t step);
  void compare_fingerprints(const Fingerprint& own_fingerprint);
  [[noreturn]] void mismatch(const std::string& what);
  [[noreturn]] void fail(Failure failure);
  std::string activity_of(int peer);

  void reduce_small(const at::Tensor& dense, ReduceOp op, Fingerprint fingerprint);
  void reduce_large(const at::Tensor& dense, ReduceOp op, Fingerprint fingerprint);
  void reduce_pieces(const at::Tensor& dense, ReduceOp op);
  /// to := from, which lies in a slot or mailbox of `peer`.
  void receive(const at::Tensor& to, const at::Tensor& from, int peer);
  const at::Tensor& peer_tensor(int peer, int index);
  void check_same(const at::Tensor& to, const at::Tensor& from, int peer);
  /// The group of the ranks that pass the same color, and this rank's place in it.
  std::pair<std::shared_ptr<ThreadGroup>, int> split_group(int color, int key);
  std::vector<std::string> gather_bytes(CommKind kind, const std::string& bytes);

  void post(const std::vector<Message>& sends);
  void collect(const std::vector<Message>& receives);
  void take(const Message& message);
  void await_taken(const std::vector<Message>& sends);
  using Peers = c10::SmallVector<int, 8>;
  static Peers peers_of(const std::vector<Message>& messages);

  RankSlot& own() { return group_->slot(rank_); }
  uint32_t begun() const { return static_cast<uint32_t>(2 * sequence_ - 1); }
  uint32_t ended() const { return static_cast<uint32_t>(2 * sequence_); }

  std::shared_ptr<ThreadGroup> group_;
  int rank_;
  std::vector<int> others_;         ///< all other ranks, the next one first
  CommKind kind_ = CommKind::None;  ///< of the current or last operation
  uint64_t sequence_ = 0;           ///< operations started
  uint64_t collectives_ = 0;        ///< of them, those that all ranks wait in
  std::vector<size_t> taken_;       ///< messages taken from each rank in the current exchange
};

/// One communicator a rank of a new job of thread ranks.
std::vector<std::shared_ptr<ThreadCommunicator>> make_thread_communicators(
    const std::shared_ptr<ThreadWorld>& world, int size);

}  // namespace shard
