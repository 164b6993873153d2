// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_control.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/mpi/mpi_call.h"

namespace shard {
namespace {

template <size_t n>
void assign(std::array<char, n>& to, const std::string& text) {
  const size_t length = std::min(text.size(), n - 1);
  std::memcpy(to.data(), text.data(), length);
  to[length] = '\0';
}

}  // namespace

MpiControl::MpiControl(MPI_Comm parent) {
  check_mpi(MPI_Comm_dup(parent, &comm_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  reported_.resize(static_cast<size_t>(size_), 0);
  ended_.resize(static_cast<size_t>(size_), 0);
  asked_.resize(static_cast<size_t>(size_), -1);
  answers_.resize(static_cast<size_t>(size_));
}

void MpiControl::listen() {
  for (;;) {
    int is_there = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &is_there, &status), "MPI_Iprobe");
    if (is_there == 0) break;
    Message message;
    check_mpi(MPI_Recv(&message, sizeof message, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, comm_,
                       MPI_STATUS_IGNORE),
              "MPI_Recv");
    handle(status.MPI_SOURCE, status.MPI_TAG, message);
  }
  outgoing_.remove_if([](Outgoing& sent) {
    int is_done = 0;
    MPI_Test(&sent.request, &is_done, MPI_STATUS_IGNORE);
    return is_done != 0;
  });
}

void MpiControl::handle(int from, int tag, const Message& message) {
  switch (tag) {
    case kFailed:
      report(from, {message.kind, message.culprit, message.text.data(), message.where.data()});
      break;
    case kEnded:
      ended_[static_cast<size_t>(from)] = 1;
      break;
    case kAsk: {
      Message answer;
      answer.communicator = message.communicator;
      answer.progress = progress_[message.communicator];
      send(from, kAnswer, answer);
      break;
    }
    case kAnswer:
      if (message.communicator == asked_[static_cast<size_t>(from)]) {
        answers_[static_cast<size_t>(from)] = message.progress;
      }
      break;
    default:
      break;
  }
}

void MpiControl::send(int to, Tag tag, const Message& message) {
  Outgoing& sent = outgoing_.emplace_back(Outgoing{message, MPI_REQUEST_NULL});
  check_mpi(MPI_Isend(&sent.message, sizeof sent.message, MPI_BYTE, to, tag, comm_, &sent.request),
            "MPI_Isend");
}

void MpiControl::send_to_all(Tag tag, const Message& message) {
  for (int i = 1; i < size_; ++i) send((rank_ + i) % size_, tag, message);
}

void MpiControl::report(int reporter, const Failure& failure) {
  reported_[static_cast<size_t>(reporter)] = 1;
  if (!failure_) failure_ = failure;
}

void MpiControl::fail(const Failure& failure) noexcept {
  if (failure_) return;
  report(rank_, failure);
  Message message;
  assign(message.text, failure.message);
  assign(message.where, failure.where);
  message.culprit = failure.world_rank;
  message.kind = failure.kind;
  try {
    send_to_all(kFailed, message);
  } catch (...) {  // whoever is not told finds out by its own timeout
  }
}

int MpiControl::lowest_reporter() const {
  const auto found = std::find(reported_.begin(), reported_.end(), 1);
  return found == reported_.end() ? -1 : static_cast<int>(found - reported_.begin());
}

void MpiControl::announce_end() noexcept {
  ended_[static_cast<size_t>(rank_)] = 1;
  try {
    send_to_all(kEnded, {});
  } catch (...) {  // as in fail()
  }
}

bool MpiControl::have_all_ended() const {
  return std::all_of(ended_.begin(), ended_.end(), [](char ended) { return ended != 0; });
}

void MpiControl::ask(int rank, int tag) {
  answers_[static_cast<size_t>(rank)].reset();
  asked_[static_cast<size_t>(rank)] = tag;
  Message question;
  question.communicator = tag;
  send(rank, kAsk, question);
}

std::optional<MpiProgress> MpiControl::take_answer(int rank) {
  return std::exchange(answers_[static_cast<size_t>(rank)], std::nullopt);
}

}  // namespace shard
