// SPDX-License-Identifier: Apache-2.0
// The communicator of ranks that send each other messages: every collective is a round or two of
// them. Reductions use the kernel of the threads backend on the same slices, so both give the same
// bits.
#pragma once

#include <shard/communicator.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/fingerprint.h"
#include "comm/messages/message_transport.h"

namespace shard {

class MessageCommunicator final : public CommunicatorBackend {
 public:
  /// `world_ranks` in this communicator's order; see NOTE [Communicators are tags].
  MessageCommunicator(std::shared_ptr<MessageTransport> transport, std::vector<int> world_ranks,
                      int tag, bool is_lane = false);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_ranks_.size()); }
  const char* backend_name() const override { return transport_->name(); }

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
  std::shared_ptr<CommunicatorBackend> make_lane() override;
  void poison(const std::string& why) noexcept override;
  int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  /// The world ranks that pass the same color, and the tag of their communicator.
  std::pair<std::vector<int>, int> split_ranks(int color, int key);
  Fingerprint start(CommKind kind);
  void reduce_small(const at::Tensor& dense, ReduceOp op, const Fingerprint& fingerprint);
  void reduce_large(const at::Tensor& dense, ReduceOp op, const Fingerprint& fingerprint);
  std::vector<std::string> gather_bytes(CommKind kind, const std::string& bytes);
  void check_cpu(CommKind kind, const at::Tensor& tensor) const;
  void copy_own(const at::Tensor& to, const at::Tensor& from);
  void check_same(const at::Tensor& to, const at::Tensor& from);
  [[noreturn]] void mismatch(const std::string& what);
  int world_rank(int rank) const { return world_ranks_[static_cast<size_t>(rank)]; }

  std::shared_ptr<MessageTransport> transport_;
  std::vector<int> world_ranks_;
  MessageOperation operation_;  ///< the current or last one
  int rank_ = 0;
  int64_t bytes_sent_ = 0;
};

}  // namespace shard
