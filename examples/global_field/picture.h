// SPDX-License-Identifier: Apache-2.0
// The picture: truth, prediction and error of one month, north up, with the borders between shards.
// Every rank paints its own rows; only the painted rows (8-bit colours) go to rank 0.
#pragma once

#include <string>

#include "sharded_field.h"
#include "unet.h"

namespace global_field {

/// Collective; rank 0 writes the file. Errors: shard::FileError.
void write_picture(const std::string& path, UNet& model, const ShardedField& field, int64_t month);

}  // namespace global_field
