// SPDX-License-Identifier: Apache-2.0
// Checkpoints: model, optimizer, course of the training, generator and configuration in one file
// that appears complete or not at all. Rank 0 writes and reads; the others get the bytes from it,
// so the folder need not be shared.
#pragma once

#include <shard/communicator.h>

#include "options.h"
#include "training.h"

namespace global_field {

/// Collective. Errors: shard::FileError.
void save_checkpoint(const Options& options, Training& training, const shard::Communicator& comm);

/// Collective. Errors: shard::FileError (missing, damaged), shard::ConfigError (made with other
/// options).
void load_checkpoint(const Options& options, Training& training, const shard::Communicator& comm);

}  // namespace global_field
