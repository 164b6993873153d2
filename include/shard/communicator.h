// SPDX-License-Identifier: Apache-2.0
// Communicator: the collectives that everything else is built from. A value handle over an
// implementation interface; one folder a backend in src/comm/. Tensors are passed as views: senders
// are read where they lie and receivers are written where they lie, whatever their strides, so no
// caller packs. All tensors live on the rank's device and have no autograd graph (callers hold
// at::AutoDispatchBelowADInplaceOrView or pass detached tensors). Of a ShardTensor the local part
// travels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace shard {

enum class ReduceOp : uint8_t { Sum, Avg, Max, Min };
const char* name_of(ReduceOp op);

/// One point-to-point part of an `exchange`. Several messages between the same two ranks are
/// matched in the order in which they are listed.
struct Message {
  int peer = 0;  ///< rank in the communicator; may be the caller itself
  at::Tensor
      tensor;  ///< read (sends) or overwritten (receives); any strides, zero elements allowed
};

/// What a backend implements. Every method is collective over all ranks of the communicator; every
/// wait is bounded by the timeout and ends early when a rank fails. Sizes and dtypes are checked
/// between ranks (a fingerprint travels with every operation): disagreement is CommMismatch on
/// every rank. Zero-element tensors are normal.
class CommunicatorBackend {
 public:
  virtual ~CommunicatorBackend() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* backend_name() const = 0;

  virtual void barrier() = 0;
  /// `tensor` (equal sizes everywhere) becomes the reduction over ranks, summed in rank order:
  /// bitwise equal on all ranks and from run to run. bf16/half accumulate in float. Avg divides at
  /// the end. Integer and bool: Sum, Max, Min.
  virtual void all_reduce(at::Tensor& tensor, ReduceOp op) = 0;
  /// `outputs[r]` becomes rank r's `piece`; outputs[r] must have rank r's piece's sizes.
  virtual void all_gather_v(const at::Tensor& piece, const std::vector<at::Tensor>& outputs) = 0;
  /// `output` becomes the sum (op) in rank order of the `pieces[this rank]` of all ranks.
  virtual void reduce_scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output,
                                ReduceOp op) = 0;
  /// `receives[r]` becomes rank r's `sends[this rank]`.
  virtual void all_to_all_v(const std::vector<at::Tensor>& sends,
                            const std::vector<at::Tensor>& receives) = 0;
  /// `tensor` becomes rank `root`'s.
  virtual void broadcast(at::Tensor& tensor, int root) = 0;
  /// `output` becomes `pieces[this rank]` of rank `root`; `pieces` is read on the root only.
  virtual void scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output, int root) = 0;
  /// A sparse set of sends and receives. Ranks without messages call it too (with empty lists).
  virtual void exchange(const std::vector<Message>& sends,
                        const std::vector<Message>& receives) = 0;
  /// Every rank passes a byte string, every rank gets all of them (specs, errors, small metadata).
  virtual std::vector<std::string> all_gather_bytes(const std::string& bytes) = 0;
  /// New communicators, one per distinct `color`; ranks ordered by (`key`, old rank).
  virtual std::shared_ptr<CommunicatorBackend> split(int color, int key) = 0;

  /// Makes every other rank's current and later waits on this communicator (and those split from
  /// it, or that it was split from) throw PeerFailed naming this world rank and `why`. Never
  /// throws.
  virtual void poison(const std::string& why) noexcept = 0;

  /// Payload bytes that this rank has sent to other ranks, counted where they are moved. Exact
  /// after a barrier. CommCounter computes the same from the calls; tests compare the two.
  virtual int64_t bytes_sent() const = 0;

  /// A second communicator of the same ranks for a helper thread, which uses it while the rank's
  /// own thread computes or uses this one. Null where the backend serves one thread only.
  /// Collective.
  virtual std::shared_ptr<CommunicatorBackend> make_lane() { return nullptr; }
  /// On a lane, called by the rank's own thread: one more operation is in its helper's hands.
  virtual void note_handed_over() {}
  /// On a lane, called by the rank's own thread: it begins or ends a long wait for its helper.
  virtual void note_rank_waits(bool /*waits*/) {}
};

class CommLog;
class TransferLane;
enum class CommKind : uint8_t;

/// What an operation that has been started will give. It comes out of wait() only, which raises
/// what the operation raises, so a result can be neither used early nor taken for granted.
template <class T>
class [[nodiscard]] Pending {
 public:
  explicit Pending(std::function<T()> finish) : finish_(std::move(finish)) {}
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&&) noexcept = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  ~Pending() = default;
  /// Once.
  T wait() { return std::exchange(finish_, nullptr)(); }

 private:
  std::function<T()> finish_;
};

/// The handle that the rest of the library uses: forwards to the backend, counts every call in the
/// CommCounter of this rank (kind, bytes this rank sends to other ranks, `name`, current label) and
/// keeps the last 64 calls for the flight recorder. Copying shares the backend.
/// On one rank every call returns at once and is not counted. Tensors that are written get a new
/// version, as after any in-place op.
class Communicator {
 public:
  Communicator() = default;
  Communicator(std::shared_ptr<CommunicatorBackend> backend, std::string name);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }  ///< the mesh dim it belongs to
  const char* backend_name() const;
  bool defined() const { return backend_ != nullptr; }

  void barrier() const;
  void all_reduce(at::Tensor& tensor, ReduceOp op = ReduceOp::Sum) const;
  void all_gather_v(const at::Tensor& piece, const std::vector<at::Tensor>& outputs) const;
  void reduce_scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output,
                        ReduceOp op = ReduceOp::Sum) const;
  void all_to_all_v(const std::vector<at::Tensor>& sends,
                    const std::vector<at::Tensor>& receives) const;
  void broadcast(at::Tensor& tensor, int root) const;
  void scatter_v(const std::vector<at::Tensor>& pieces, at::Tensor& output, int root) const;
  void exchange(const std::vector<Message>& sends, const std::vector<Message>& receives) const;
  /// The same while the caller goes on: a helper thread of this rank moves the messages. The
  /// received tensors come out of wait(); until then nobody writes what is sent or touches what is
  /// received. Exchanges that are started are matched between ranks in their order, apart from all
  /// other calls; several may be under way. All that holds for a call holds for wait(): errors,
  /// timeout, fingerprints. Where the backend serves one thread only, the messages move at once.
  Pending<std::vector<at::Tensor>> start_exchange(std::vector<Message> sends,
                                                  std::vector<Message> receives) const;
  std::vector<std::string> all_gather_bytes(const std::string& bytes) const;
  Communicator split(int color, int key, std::string name) const;
  void poison(const std::string& why) const noexcept;
  int64_t bytes_sent() const;

 private:
  Communicator(std::shared_ptr<CommunicatorBackend> backend, std::string name,
               std::shared_ptr<CommLog> log);
  template <class Call>
  void recorded(CommKind kind, int64_t bytes, const at::Tensor* tensor, const Call& call) const;

  std::shared_ptr<CommunicatorBackend> backend_;
  std::shared_ptr<CommLog> log_;  ///< of the rank that made the handle
  std::shared_ptr<TransferLane> lane_;
  std::string name_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace shard
