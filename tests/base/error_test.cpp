// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <shard/error.h>

#include "base/exception_text.h"

namespace shard::testing {
namespace {

TEST(Error, SaysWhereAndNothingElse) {
  try {
    raise<SpecMismatch>("conv2d", "rows: got ", 3, "; expected ", 4, ". Redistribute.");
  } catch (const c10::Error& error) {
    EXPECT_STREQ(error.what(), "[conv2d] rows: got 3; expected 4. Redistribute.");
    return;
  }
  ADD_FAILURE() << "not a c10::Error";
}

TEST(Error, IsRaisedUnlessTheCheckHolds) {
  EXPECT_NO_THROW(check<ConfigError>(true, "mesh", "fine"));
  EXPECT_THROW(check<ConfigError>(false, "mesh", "not fine"), ConfigError);
}

TEST(ExceptionText, LeavesLibTorchsBacktraceOut) {
  std::exception_ptr error;
  try {
    TORCH_CHECK(false, "from LibTorch");
  } catch (...) {
    error = std::current_exception();
  }
  EXPECT_EQ(exception_text(error), "from LibTorch");
  EXPECT_EQ(exception_text(std::make_exception_ptr(std::runtime_error("plain"))), "plain");
  EXPECT_EQ(exception_text(std::make_exception_ptr(3)), "an exception that is no std::exception");
}

}  // namespace
}  // namespace shard::testing
