// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/process_group_transport.h"

#include <ATen/Context.h>
#include <ATen/ops/from_blob.h>
#include <shard/environment.h>
#include <shard/error.h>
#include <shard/log.h>
#include <shard/process_group.h>

#include <algorithm>
#include <list>
#include <numeric>
#include <sstream>

#include "comm/device_plugin.h"
#include "comm/messages/message_communicator.h"

namespace shard {
namespace {

/// Where a group's ranks tell each other of the first failure.
const std::string kFailureKey = "shardtensor/failure";

std::vector<uint8_t> to_bytes(const Failure& failure) {
  const std::string text = c10::str(static_cast<int>(failure.kind), ' ', failure.world_rank, ' ',
                                    failure.where, '\n', failure.message);
  return {text.begin(), text.end()};
}

std::optional<Failure> failure_of(const std::vector<uint8_t>& bytes) {
  std::istringstream text(std::string(bytes.begin(), bytes.end()));
  int kind = 0;
  Failure failure;
  text >> kind >> failure.world_rank;
  text.get();
  std::getline(text, failure.where);
  std::getline(text, failure.message, '\0');
  if (!text && failure.message.empty()) return std::nullopt;
  failure.kind = static_cast<Failure::Kind>(kind);
  return failure;
}

at::Tensor bytes_at(void* data, int64_t bytes) { return at::from_blob(data, {bytes}, at::kByte); }

void check_has_cpu_backend(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  check<ConfigError>(group.defined(), "from_process_group",
                     "got no group; expected a c10d::ProcessGroup. Make one first.");
  const auto devices = group->getDeviceTypes();
  check<ConfigError>(
      std::any_of(devices.begin(), devices.end(), [](const auto& d) { return d.is_cpu(); }),
      "from_process_group", "got a group without a CPU backend (", group->getBackendName(),
      "); expected one that moves CPU tensors. Make it with \"cpu:gloo,cuda:nccl\".");
}

void check_device(c10::Device device) {
  if (device.is_cpu()) return;
  device_plugin();  // brings LibTorch's CUDA library with it
  const auto count = static_cast<int>(at::getNumGPUs());
  check<ConfigError>(device.is_cuda() && device.has_index() && device.index() < count,
                     "from_process_group", "device: got ", device, " where there are ", count,
                     " GPUs; expected cpu, or cuda with the index of one of them. Pass this rank's "
                     "own device.");
}

}  // namespace

/// Everything that must live until the last wait of a round has ended.
class ProcessGroupTransport::Round {
 public:
  Round(ProcessGroupTransport& transport, const MessageOperation& operation,
        const MessageRoundPlan& plan, std::shared_ptr<void> memory)
      : transport_(transport),
        operation_(operation),
        plan_(plan),
        memory_(std::move(memory)),
        headers_out_(plan.sends.size()),
        headers_in_(plan.receives.size()) {}

  void run() {
    move_headers();
    move_pieces();
  }

 private:
  struct Pending {
    Work work;
    int peer;
  };

  void post(std::vector<Pending>& list, bool is_send, int peer, void* data, int64_t bytes,
            int tag) {
    auto& tensors = tensors_.emplace_back(std::vector{bytes_at(data, bytes)});
    auto& group = *transport_.group_;
    list.push_back(
        {is_send ? group.send(tensors, peer, tag) : group.recv(tensors, peer, tag), peer});
  }

  // Each header is checked before the next is waited for: a rank that sends fewer messages than
  // expected says so in the first.
  void move_headers() {
    const int tag = 2 * operation_.tag;
    const MessageNumbering sent(plan_.sends);
    const MessageNumbering expected(plan_.receives);
    std::vector<Pending> receives;
    for (size_t i = 0; i < plan_.receives.size(); ++i) {
      post(receives, false, plan_.receives[i].peer, &headers_in_[i], sizeof(MessageHeader), tag);
    }
    for (size_t i = 0; i < plan_.sends.size(); ++i) {
      const MessagePiece& piece = plan_.sends[i];
      headers_out_[i] = {plan_.fingerprint.words(), piece.shape, piece.bytes, sent.index[i],
                         sent.count[i]};
      post(sends_, true, piece.peer, &headers_out_[i], sizeof(MessageHeader), tag);
    }
    for (size_t i = 0; i < receives.size(); ++i) {
      transport_.wait(operation_, receives[i].work, receives[i].peer);
      transport_.check_header(operation_, plan_, i, expected.count[i], headers_in_[i]);
    }
  }

  void move_pieces() {
    const int tag = 2 * operation_.tag + 1;
    std::vector<Pending> receives;
    for (const MessagePiece& piece : plan_.receives) {
      if (piece.bytes > 0) post(receives, false, piece.peer, piece.data, piece.bytes, tag);
    }
    for (const MessagePiece& piece : plan_.sends) {
      if (piece.bytes > 0) post(sends_, true, piece.peer, piece.data, piece.bytes, tag);
    }
    for (const auto& [work, peer] : receives) transport_.wait(operation_, work, peer);
    for (const auto& [work, peer] : sends_) transport_.wait(operation_, work, peer);
  }

  ProcessGroupTransport& transport_;
  MessageOperation operation_;
  const MessageRoundPlan& plan_;
  std::shared_ptr<void> memory_;
  std::vector<MessageHeader> headers_out_, headers_in_;
  std::list<std::vector<at::Tensor>> tensors_;
  std::vector<Pending> sends_;
};

ProcessGroupTransport::ProcessGroupTransport(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                             std::chrono::milliseconds timeout)
    : group_(std::move(group)), timeout_(timeout) {}

void ProcessGroupTransport::move(const MessageOperation& operation, const MessageRoundPlan& plan,
                                 const std::shared_ptr<void>& memory) {
  auto round = std::make_shared<Round>(*this, operation, plan, memory);
  try {
    round->run();
  } catch (...) {
    keep_for_good(std::move(round));
    throw;
  }
}

void ProcessGroupTransport::wait(const MessageOperation& operation, const Work& work, int peer) {
  const auto begin = std::chrono::steady_clock::now();
  std::string why = "the group gave the wait up";
  try {
    if (work->wait(timeout_)) return;
  } catch (const std::exception& error) {
    why = error.what();
  }
  read_failure();
  raise_if_failed(operation);
  if (std::chrono::steady_clock::now() - begin >= timeout_) {
    const double seconds = std::chrono::duration<double>(timeout_).count();
    fail(operation, {Failure::Kind::Timeout, peer,
                     c10::str("operation ", operation.number, ": rank ", rank(),
                              " waited for rank ", peer, " for ", seconds,
                              " s; expected the same calls on every rank. Look for what rank ",
                              peer, " does instead, or raise SHARD_TIMEOUT."),
                     name_of(operation.kind)});
  }
  fail(operation, failed_rank(peer, c10::str("its messages stopped: ", why)));
}

void ProcessGroupTransport::announce(const Failure& failure) noexcept {
  if (failure_) return;
  failure_ = failure;
  try {
    if (const auto store = group_->getStore()) {
      const auto first = store->compareSet(kFailureKey, {}, to_bytes(failure));
      if (const auto known = failure_of(first)) failure_ = known;
    }
    group_->abort();  // ends the waits of the others where the group can
  } catch (const std::exception& error) {
    log(LogLevel::Debug, "c10d: ", error.what());
  }
}

void ProcessGroupTransport::read_failure() noexcept {
  try {
    const auto store = group_->getStore();
    if (store && store->check({kFailureKey})) failure_ = failure_of(store->get(kFailureKey));
  } catch (const std::exception& error) {
    log(LogLevel::Debug, "c10d: ", error.what());
  }
}

Communicator from_process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                std::optional<std::chrono::milliseconds> timeout,
                                c10::Device device) {
  check_has_cpu_backend(group);
  check_device(device);
  auto transport =
      std::make_shared<ProcessGroupTransport>(group, timeout.value_or(environment().timeout));
  std::vector<int> ranks(static_cast<size_t>(group->getSize()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const int tag = transport->next_tag();
  transport->use_tag(tag);
  auto host = std::make_shared<MessageCommunicator>(std::move(transport), std::move(ranks), tag);
  return {backend_for(std::move(host), device), "world"};
}

}  // namespace shard
