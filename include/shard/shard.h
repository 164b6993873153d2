// SPDX-License-Identifier: Apache-2.0
// Everything a program needs: ranks, meshes, sharded tensors. Patch authors include <shard/patch.h>
// as well.
#pragma once

#include <shard/comm_counter.h>
#include <shard/communicator.h>
#include <shard/describe.h>
#include <shard/environment.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/log.h>
#include <shard/memory.h>
#include <shard/mesh.h>
#include <shard/modes.h>
#include <shard/parameters.h>
#include <shard/random.h>
#include <shard/spec.h>
#include <shard/tensor.h>
