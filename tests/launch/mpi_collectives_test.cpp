// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <shard/mesh.h>

#include "comm/mpi/mpi_transfer.h"
#include "mpi_world.h"
#include "support/collective_cases.h"

namespace shard::testing {
namespace {

class OnMpiRanks : public ::testing::TestWithParam<CollectiveCase> {};

TEST_P(OnMpiRanks, Do) { GetParam().run(mpi_world()); }

TEST_P(OnMpiRanks, DoOnASubMesh) {
  const DeviceMesh mesh(mpi_world(), {{"domain", 2}, {"ddp", -1}}, c10::kCPU);
  GetParam().run(mesh.comm("domain"));
  GetParam().run(mesh.comm("ddp"));
}

// As for messages above 2^31 bytes.
TEST_P(OnMpiRanks, DoInChunks) {
  const int64_t outer = chunk_bytes();
  set_chunk_bytes(1000);
  GetParam().run(mpi_world());
  set_chunk_bytes(outer);
}

INSTANTIATE_TEST_SUITE_P(Comm, OnMpiRanks, ::testing::ValuesIn(collective_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shard::testing
