# SPDX-License-Identifier: Apache-2.0
include(io/fixtures/fixtures.cmake)
shard_add_io_fixtures(io)
