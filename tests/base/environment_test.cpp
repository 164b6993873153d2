// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/environment.h>
#include <shard/error.h>

#include <cstdlib>

namespace shard::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// Sets a variable for the duration of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* outer = std::getenv(name)) outer_ = outer;
    setenv(name, value, 1);
  }
  ~Variable() { outer_ ? setenv(name_, outer_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> outer_;
};

TEST(Environment, ReadsEveryVariable) {
  const Variable ranks("SHARD_RANKS", "3");
  const Variable threads("SHARD_THREADS", "2");
  const Variable timeout("SHARD_TIMEOUT", "1.5");
  const Variable log("SHARD_LOG", "info");
  const Variable memory("SHARD_CPU_MEMORY", "system");
  const Variable attention("SHARD_ATTENTION", "heads");
  const Environment env = read_environment();
  EXPECT_EQ(env.attention, "heads");
  EXPECT_EQ(env.ranks, 3);
  EXPECT_EQ(env.threads, 2);
  EXPECT_EQ(env.timeout, 1500ms);
  EXPECT_EQ(env.log, "info");
  EXPECT_TRUE(env.system_memory);
}

TEST(Environment, TakesEmptyForUnset) {
  const Variable ranks("SHARD_RANKS", "");
  EXPECT_EQ(read_environment().ranks, std::nullopt);
}

class BadVariable : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(BadVariable, IsNamedWithItsValue) {
  const auto& [name, value] = GetParam();
  const Variable variable(name, value);
  try {
    read_environment();
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr(std::string("[") + name + "] got '" + value + "'; expected"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Environment, BadVariable,
    ::testing::Values(std::pair{"SHARD_RANKS", "0"}, std::pair{"SHARD_RANKS", "two"},
                      std::pair{"SHARD_RANKS", "2 "}, std::pair{"SHARD_RANKS", "99999999999"},
                      std::pair{"SHARD_THREADS", "-1"}, std::pair{"SHARD_TIMEOUT", "0"},
                      std::pair{"SHARD_TIMEOUT", "nan"}, std::pair{"SHARD_TIMEOUT", "10s"},
                      std::pair{"SHARD_LOG", "loud"}, std::pair{"SHARD_CPU_MEMORY", "no"},
                      std::pair{"SHARD_EXPLAIN", "yes"}, std::pair{"SHARD_FALLBACK", "1"},
                      std::pair{"SHARD_CHECK_REPLICATED", "2"}));

}  // namespace
}  // namespace shard::testing
