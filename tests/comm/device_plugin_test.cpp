// SPDX-License-Identifier: Apache-2.0
#include "comm/device_plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/error.h>

namespace shard::testing {
namespace {

TEST(DevicePlugin, RanksHaveDevicesOfOneKind) {
  EXPECT_NO_THROW(check_one_kind({"NVIDIA A100", "NVIDIA A100"}));
  EXPECT_NO_THROW(check_one_kind({}));
  try {
    check_one_kind({"NVIDIA A100", "NVIDIA A100", "NVIDIA H200"});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                ::testing::HasSubstr("got NVIDIA H200 on rank 2; expected NVIDIA A100"));
  }
}

}  // namespace
}  // namespace shard::testing
