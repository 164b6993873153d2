// SPDX-License-Identifier: Apache-2.0
// The plugin for GPUs: loads where it was built, and says why no device can be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/cuda.h>
#include <shard/error.h>
#include <shard/launch.h>

namespace shard::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Cuda, ThePluginLoadsAndNamesWhatItWasBuiltWith) {
  const std::string text = describe_cuda();
  if (text.starts_with("none: ")) {
    EXPECT_FALSE(cuda_is_available());
    EXPECT_THAT(text, ::testing::AnyOf(HasSubstr("this build has no libshard_cuda.so"),
                                       HasSubstr("cannot open shared object file")));
    GTEST_SKIP() << text;
  }
  EXPECT_THAT(text, ContainsRegex("^[0-9]+ devices?; CUDA [0-9]+\\.[0-9]+, cuDNN [0-9]+\\.[0-9]+, "
                                  "NCCL 2\\.[0-9]+\\.[0-9]+$"));
}

TEST(Cuda, ALaunchWithoutADeviceIsRefusedWithTheReason) {
  if (cuda_is_available()) GTEST_SKIP() << "there is a GPU";
  LaunchOptions options;
  options.device = c10::kCUDA;
  try {
    run_ranks(
        2, [](World&) { FAIL() << "started"; }, options);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                StartsWith("[launch] device: got cuda; expected cpu, since no GPU can be used ("));
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr(describe_cuda()));
  }
}

TEST(Cuda, OtherDevicesAreRefused) {
  LaunchOptions options;
  options.device = c10::Device(c10::DeviceType::MPS, 0);
  EXPECT_THROW(run_ranks(
                   1, [](World&) {}, options),
               ConfigError);
}

}  // namespace
}  // namespace shard::testing
