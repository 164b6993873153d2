// SPDX-License-Identifier: Apache-2.0
// Ranks that somebody else has started: a communicator over an existing c10d::ProcessGroup (a gloo
// group made by Python, or one of the user's own). Link and include as LibTorch says; libshard
// itself needs nothing more.
#pragma once

#include <c10/core/Device.h>
#include <shard/communicator.h>

#include <chrono>
#include <optional>

namespace c10d {
class ProcessGroup;
}

namespace shard {

/// A communicator over `group`'s CPU backend, of which only `send` and `recv` are used: collectives
/// and reductions are this library's own, with the bits of the other backends. `DeviceMesh(comm,
/// dims, device)` makes a mesh of it. The communicator keeps the group alive.
///
/// `device`: where the ranks' tensors are. The CPU: not collective. A GPU, with its index:
/// collective over the group; tensors then travel by NCCL, over communicators of this library's own
/// that the CPU backend sets up, or by way of the host where ranks share a GPU.
///
/// `timeout`: of one wait; nullopt: SHARD_TIMEOUT. A rank that fails writes why into the group's
/// store, where the others find it as soon as the group ends their waits (connection closed, or
/// time over).
///
/// Errors: ConfigError when the group has no CPU backend (make it with "cpu:gloo,cuda:nccl"), when
/// there is no such device, and in builds whose LibTorch has no c10d.
Communicator from_process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                std::optional<std::chrono::milliseconds> timeout = std::nullopt,
                                c10::Device device = c10::kCPU);

}  // namespace shard
